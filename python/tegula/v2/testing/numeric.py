# SPDX-License-Identifier: MIT
from ...testing.numeric import assert_equal, calc_diff, check_bias, count_bytes

__all__ = ["assert_equal", "calc_diff", "check_bias", "count_bytes"]
