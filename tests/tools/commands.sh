# SPDX-License-Identifier: MIT
# The commands that docs/benchmarking.md shows. test_tool.py runs this file, with tegula on the PATH.
set -eu

# doc: look
tegula bench transpose num_rows=1,8,64 num_cols=7168 dtype=bf16 --quick
# end

# doc: record
tegula bench transpose num_rows=64,128 num_cols=7168 dtype=bf16 --json before.jsonl --html report.html
# end

# doc: against
tegula bench --from before.jsonl --against before.jsonl
# end
