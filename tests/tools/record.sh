# SPDX-License-Identifier: MIT
# The command of README.md, for the root of the sources. test_tool.py runs this file, with tegula on the PATH.
set -eu

# doc: report
tegula report bench/results/h200/*.jsonl --against bench/peers/tilekernels-1.0.0-h200.jsonl -o report.html
# end
