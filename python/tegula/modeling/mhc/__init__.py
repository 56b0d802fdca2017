# SPDX-License-Identifier: MIT
"""Manifold hyper-connections around the sublayers of a model. mhc_post, and the ops one by one, are in .ops."""
from . import ops
from .functional import expand_from_embedding, mhc_head, mhc_pre, mhc_prepare_fn

__all__ = ["expand_from_embedding", "mhc_head", "mhc_pre", "mhc_prepare_fn", "ops"]
