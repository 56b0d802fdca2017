# SPDX-License-Identifier: MIT
from ...testing.bench import dtype_to_str, make_param_id, make_param_key

__all__ = ["dtype_to_str", "make_param_id", "make_param_key"]
