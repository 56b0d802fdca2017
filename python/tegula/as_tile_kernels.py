# SPDX-License-Identifier: MIT
"""`import tegula.as_tile_kernels` makes this package importable as tile_kernels, so that code written for
TileKernels runs unchanged:

    import tegula.as_tile_kernels
    from tile_kernels.transpose import transpose

Every module of TileKernels 1.0 can be imported. What this package lacks is an error, unless fall_back() is called: then it
comes from the tile_kernels that is installed. After use_v2() tile_kernels is TileKernels 2, as far as it is here."""
import functools
import importlib
import importlib.machinery
import importlib.util
import sys
import types
import warnings

import tegula

_NAME = "tile_kernels"
_real = "tegula"                                # which package that is
_INSTALLED = "tegula_installed_tile_kernels"    # the name under which fall_back() imports the other package


_installed_spec = None                          # where it is, once fall_back() was called


def use_v2():
    """From now on tile_kernels is tegula.v2. What was imported from it before stays that of TileKernels 1.0."""
    global _real
    if _real == "tegula.v2":
        return
    if _installed_spec is not None:
        raise RuntimeError("use_v2() was called after fall_back(), must be before it")
    _real = "tegula.v2"
    for name in [name for name in sys.modules if name.startswith(_NAME + ".")]:
        del sys.modules[name]
    sys.modules[_NAME] = tegula.v2
    _add_modules("engram")


def fall_back():
    """From now on functions and modules that tegula lacks are those of the installed tile_kernels, whose own imports of
    tile_kernels get tegula's where there are any. Warns once of each name. ImportError if none is installed."""
    global _installed_spec
    if _installed_spec is not None:
        return
    found = importlib.machinery.PathFinder.find_spec(_NAME, sys.path)       # which does not ask _Alias
    if found is None or found.origin is None:
        raise ImportError("no tile_kernels is installed to fall back to", name=_NAME)
    _installed_spec = importlib.util.spec_from_file_location(
        _INSTALLED, found.origin, submodule_search_locations=found.submodule_search_locations)
    for name, module in list(sys.modules.items()):
        if name == _real or name.startswith(_real + "."):
            _let_fall_back(module)


def _import_installed(name):
    """The module that is called `name` ("tile_kernels.moe") in the installed package; None if it has none."""
    if _INSTALLED not in sys.modules:
        package = sys.modules[_INSTALLED] = importlib.util.module_from_spec(_installed_spec)
        try:
            _installed_spec.loader.exec_module(package)
        except BaseException:
            del sys.modules[_INSTALLED]
            raise
    real = _INSTALLED + name[len(_NAME):]
    try:
        return importlib.import_module(real)
    except ModuleNotFoundError as e:
        if e.name and (real == e.name or real.startswith(e.name + ".")):
            return None
        raise               # it is there, and lacks something itself


def _fallback(module, attribute):
    """module.attribute of the installed package, as (value,); () if it has none. `module` is "tile_kernels.moe"."""
    if attribute.startswith("__") or _installed_spec is None or (theirs := _import_installed(module)) is None:
        return ()
    if hasattr(theirs, attribute):
        value = getattr(theirs, attribute)
    elif (value := _import_installed(f"{module}.{attribute}")) is None:
        return ()
    _warn(f"{module}.{attribute}")
    return (value,)


@functools.cache
def _warn(name):
    warnings.warn(f"{name} is not in tegula: it is that of the installed tile_kernels", stacklevel=4)


def _hint():
    return ("the installed tile_kernels has none either" if _installed_spec is not None else
            "tegula.as_tile_kernels.fall_back() takes what tegula lacks from an installed tile_kernels")


def _let_fall_back(module):
    """Gives a module of tegula a __getattr__ that asks the installed package last."""
    before, name = vars(module).get("__getattr__"), _NAME + module.__name__[len(_real):]
    if getattr(before, "falls_back", False):
        return

    def find(attribute):
        if before is not None:
            try:
                return before(attribute)
            except AttributeError:
                pass
        if found := _fallback(name, attribute):
            setattr(module, attribute, found[0])
            return found[0]
        raise AttributeError(f"module {module.__name__!r} has no attribute {attribute!r}")

    find.falls_back = True
    module.__getattr__ = find


def _of_one_op_each(package):
    """TileKernels has most ops in modules of their own."""
    return {name + "_kernel": name for name in package.__all__ if callable(getattr(package, name))}


_CASTS = "{0} {0}_with_precomputed_sf {0}_with_sf_only"
_MODULES = {            # package: {module that only TileKernels has: names in it that the package has}
    "moe": {
        **_of_one_op_each(tegula.moe),
        "expand_to_fused_kernel": "expand_to_fused expand_to_fused_with_sf",
        "common": ""},
    "quant": {
        **_of_one_op_each(tegula.quant),
        "per_token_cast_kernel": _CASTS.format("per_token_cast"),
        "per_block_cast_kernel": _CASTS.format("per_block_cast"),
        "cast_back_kernel": "cast_back per_token_cast_back",
        "common": "unpack_from_e2m1fn_x2"},
    "engram": {
        "engram_fused_weight_kernel": "fused_weight", "engram_gate_kernel": "engram_gate_bwd engram_gate_fwd",
        "engram_grad_w_reduce_kernel": "grad_w_reduce", "engram_hash_kernel": "engram_hash",
        "engram_sinkhorn_kernel": "engram_sinkhorn_finalize engram_sinkhorn_momentum_update engram_sinkhorn_step "
                                  "engram_sinkhorn_step_reduce"},
    "modeling.engram": {"engram_gate": "EngramGateFn engram_gate"},
    "transpose": {"batched_transpose_kernel": "batched_transpose transpose"},
    "torch": {
        "cast": "cast cast_back", "cast_e5m6": "cast_back_from_e5m6 cast_to_e5m6",
        "expand_to_fused": "expand_to_fused expand_to_fused_with_sf", "reduce_fused": "reduce_fused",
        "swiglu": "swiglu_backward swiglu_forward", "topk": "stable_topk top2_sum_gate topk_sum_and_topk_group_idx"},
}


def _make_module(package, name, names):
    module = types.ModuleType(f"{_NAME}.{package}.{name}", f"Where TileKernels has {names or 'kernels only'}.")
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)     # importlib.util.find_spec() wants one
    real = sys.modules[f"{_real}.{package}"]
    vars(module).update((n, getattr(real, n)) for n in names.split())

    def missing(attribute):
        if found := _fallback(module.__name__, attribute):
            setattr(module, attribute, found[0])
            return found[0]
        raise AttributeError(f"{module.__name__}.{attribute} is not in tegula: of this module it has "
                             f"{names.replace(' ', ', ') or 'nothing'}, not what its kernels are made of; {_hint()}")

    module.__getattr__ = missing
    return module


def _add_modules(package):
    """Makes the modules that only TileKernels has. All at once: importing one later would replace a function of the
    same name (torch.cast)."""
    real = sys.modules[f"{_real}.{package}"]
    for name, names in _MODULES.get(package, {}).items():
        module = sys.modules[f"{_NAME}.{package}.{name}"] = _make_module(package, name, names)
        if not hasattr(real, name):
            setattr(real, name, module)


class _Alias:
    """Finds and loads tile_kernels.x as tegula.x (or tegula.v2.x): the same module under a second name, never a copy."""

    def find_spec(self, name, path=None, target=None):
        package, _, rest = name.partition(".")
        if package not in (_NAME, "tegula") or not rest:
            return None
        return importlib.machinery.ModuleSpec(name, self) if package == _NAME else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        real = _real + module.__name__[len(_NAME):]
        try:
            sys.modules[module.__name__] = importlib.import_module(real)
        except ModuleNotFoundError as e:
            if e.name != real and not real.startswith(f"{e.name}."):
                raise                           # it is there, and lacks something itself
            if _installed_spec is None or (theirs := _import_installed(module.__name__)) is None:
                raise ModuleNotFoundError(f"No module named {module.__name__!r}: there is no {real}; {_hint()}",
                                          name=module.__name__) from None
            _warn(module.__name__)
            sys.modules[module.__name__] = theirs
            return
        if _installed_spec is not None:
            _let_fall_back(sys.modules[module.__name__])
        for name in [name for name in sys.modules if name.startswith(real + ".")]:
            # imported already: a second import would replace what the package has under that name
            sys.modules[_NAME + name[len(_real):]] = sys.modules[name]
        if real == "tegula.torch":
            _add_modules("torch")
        if real == _real + ".modeling":
            _add_modules("modeling.engram")


if sys.modules.get(_NAME, tegula) is not tegula:
    raise ImportError("tile_kernels is already imported: import tegula.as_tile_kernels before it")
sys.modules[_NAME] = tegula
if not any(type(finder) is _Alias for finder in sys.meta_path):
    sys.meta_path.insert(0, _Alias())
    for _package in ("moe", "quant", "engram", "transpose"):      # others come with packages that import torch
        _add_modules(_package)
