# SPDX-License-Identifier: MIT
"""What importing the package does and does not do; tile_kernels by another name. Each in a process of its
own."""

import compileall
import importlib.util
import mmap
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

has_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch here")
has_numpy = pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="no NumPy here")


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


BLOCK = """if True:
    import sys
    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {}: raise ImportError(name + " is blocked")
    sys.meta_path.insert(0, Block())
"""


@has_numpy
def test_without_torch():
    run(BLOCK.format(["torch"]) +"""
    import numpy, tegula
    assert (tegula.transpose.transpose(numpy.ones((2, 3))) == 1).all()
    assert tegula.config.get_num_threads() >= 1
    try: tegula.torch
    except ImportError: pass
    else: raise AssertionError""")


def test_tests_without_torch():
    """Files that need it are skipped, also when pytest is given their names; others are collected."""
    files = [str(path) for path in pathlib.Path(__file__).parent.glob("test_*.py")]
    out = run(f"""if True:
        import pytest, sys
        sys.modules["torch"] = None
        assert pytest.main(["--collect-only", "-q", "-rs", "-p", "no:cacheprovider", *{files}]) == 0""")
    assert "test_version.py::" in out and "test_short_conv.py::" not in out and "no torch here" in out, out


def test_without_torch_and_numpy():
    run(BLOCK.format(["torch", "numpy"]) +"""
    import tegula
    assert tegula.__version__ and tegula.transpose.transpose and tegula.compile_count() == 0""")


def test_imports_nothing_large():
    run("import sys, tegula; assert not {'torch', 'numpy'} & set(sys.modules)")


@has_torch
@pytest.mark.parametrize("modules", ["time", "time, torch"])
def test_import_time(modules):
    """Under 50 ms of the processor beyond torch's own import, with and without it. The package is compiled to
    bytecode, as one that is installed. The best of ten processes: others share the machine, and what they take
    of caches and clocks can double the time, never shorten it. No garbage collection, which would be of what torch's
    import has left: 3 to 5 ms."""
    folder = importlib.util.find_spec("tegula").submodule_search_locations[0]
    compileall.compile_dir(folder, quiet=2)
    code = f"""if True:
        import gc, {modules}
        gc.disable()
        begin = time.process_time()
        import tegula
        tegula.transpose.transpose
        print(time.process_time() - begin)"""
    times = []
    while len(times) < 10 and min(times, default=1) >= 0.050:
        times.append(float(run(code)))
    assert min(times) < 0.050, times


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libgomp.so.1 is Linux's")
def test_without_libgomp(tmp_path):
    """A sentence says what to install, whether the loader finds none or one that is broken."""
    import tegula
    sentence = re.escape("tegula cannot be loaded without libgomp.so.1, GCC's OpenMP library: install the package libgomp1 "
                         "(Debian, Ubuntu) or libgomp (Fedora, RHEL). The loader says: ")

    def import_fails(path, **env):
        code = "try: import tegula\nexcept ImportError as e: print(e)\nelse: print('it loads')"
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(path), **env}, check=True,
                              capture_output=True, text=True)
        return done.stdout.strip()

    package = pathlib.Path(tegula.__file__).parent
    library = (package / "libtegula.so.0.1").read_bytes()
    if b"libgomp.so.1\0" not in library:
        pytest.skip("built without OpenMP")
    copy = tmp_path / "package" / "tegula"
    shutil.copytree(package, copy)
    (copy / "libtegula.so.0.1").write_bytes(library.replace(b"libgomp.so.1\0", b"libgomp.so.9\0"))     # one that nobody has
    assert re.fullmatch(sentence + r"libgomp\.so\.9: cannot open shared object file: .*", import_fails(copy.parent))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "libgomp.so.1").write_bytes(b"")
    seen = import_fails(package.parent, LD_LIBRARY_PATH=str(broken))
    assert re.fullmatch(sentence + r".*/libgomp\.so\.1: file too short", seen)
    (copy / "libtegula.so.0.1").unlink()          # another reason: the loader's own words
    assert "libtegula.so.0.1: cannot open shared object file" in import_fails(copy.parent)


@has_torch
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
@pytest.mark.parametrize("order", ["torch, tegula", "tegula, torch"])
def test_one_openmp_runtime(order):
    """Torch and tegula share libgomp and so its threads, whoever loads it first; two would be twice the threads."""
    torch_folder, = importlib.util.find_spec("torch").submodule_search_locations
    with open(pathlib.Path(torch_folder, "lib/libtorch_cpu.so"), "rb") as file, \
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        if library.find(b"\0libgomp.so.1\0") < 0:
            pytest.skip("this torch has another OpenMP, or libgomp under a name of its own")
    out = run(f"""if True:
        import {order}
        x = torch.ones(1000, 1000)
        assert tegula.transpose.transpose(x).sum() == 1e6
        maps = [line.split(maxsplit=5) for line in open("/proc/self/maps")]
        print(*{{path for *_, path in maps if "gomp" in path.rpartition("/")[2]}}, sep="")""")
    assert len(out.split()) == 1, out


def test_compiled_kernels_are_found_on_the_path(tmp_path):
    """tegula-cubins in another folder than tegula: a user's, or that of an editable install. It is not imported."""
    code = "import os, sys, tegula; print(os.environ.get('TEGULA_CACHE_READONLY'), 'tegula_cubins' in sys.modules)"

    def seen(**env):
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(tmp_path)])
        env = {k: v for k, v in os.environ.items() if k != "TEGULA_CACHE_READONLY"} | {"PYTHONPATH": path, **env}
        return subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout.split()

    if importlib.util.find_spec("tegula_cubins"):
        pytest.skip("tegula-cubins is installed here")
    (tmp_path / "tegula_cubins").mkdir()
    assert seen() == ["None", "False"]                  # a folder, but no package
    (tmp_path / "tegula_cubins" / "__init__.py").touch()
    assert seen() == [str(tmp_path / "tegula_cubins"), "False"]
    assert seen(TEGULA_CACHE_READONLY="/mine") == ["/mine", "False"]


def test_command_of_an_editable_install(tmp_path):
    """Such a package has two folders: the sources', and one of what was built. A command and headers are in the second."""
    for name in ("bin", "cmake", "include"):
        (tmp_path / name).mkdir()
    command = tmp_path / "bin/tegula"
    command.write_text("#!/bin/sh\necho ran $*\n")
    command.chmod(0o755)
    code = f"""if True:
        import os, sys, tegula
        tegula.__path__ = [{str(tmp_path)!r}, *tegula.__path__]
        from tegula.__main__ import main
        main()"""

    def seen(*args):
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
        return (done.stdout + done.stderr).strip()

    assert seen("list", "moe") == "ran list moe"
    assert seen("--cmake-dir") == str(tmp_path / "cmake")
    assert seen("--include-dir") == str(tmp_path / "include")


@has_torch
def test_old_torch():
    """One without the exchange API and what came with it: its tensors are refused when they come."""
    run("""if True:
        import torch
        del torch.Tensor.__dlpack_c_exchange_api__, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2
        del torch._C._increment_version, torch._C._len_torch_dispatch_stack
        import tegula
        class Sub(torch.Tensor): pass
        for x in torch.ones(2, 3), torch.nn.Parameter(torch.ones(2, 3)), torch.ones(2, 3).as_subclass(Sub):
            try: tegula.transpose.transpose(x)
            except TypeError as e: assert str(e) == "x: is a tensor of an older torch, want torch 2.10 or newer", e
            else: raise AssertionError""")


def test_members_without_what_they_need():
    """Those who walk over members expect AttributeError; an import says what is missing."""
    run("""if True:
        import inspect, sys
        import tegula
        sys.modules["jax"] = sys.modules["torch"] = None
        assert dict(inspect.getmembers(tegula))["moe"] is tegula.moe
        for name in "jax", "torch":
            assert not hasattr(tegula, name)
            try: getattr(tegula, name)
            except AttributeError as e: assert f"no attribute {name!r} here: import of {name} halted" in str(e), e
            else: raise AssertionError
            try: exec(f"from tegula import {name}")
            except ModuleNotFoundError as e: assert e.name == name
            else: raise AssertionError""")


def test_attributes():
    import tegula
    assert {"config", "transpose", "testing", "torch", "warmup", "compile_count", "Error", "get_num_sms"} <= set(dir(tegula))
    assert tegula.__version__.count(".") == 2
    assert issubclass(tegula.Error, RuntimeError)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tegula.nonsense


def test_every_row_is_public_once():
    """As a builtin in its module, or under a function of Python there that has its name or the beginning of it."""
    import tegula
    from tegula import _tegula
    names = set()
    for row in _tegula.table():
        module, name = getattr(tegula, row["module"]), row["name"]
        assert module is not tegula and (name in module.__all__) >= (not row["is_wrapped"])
        public = max((n for n in module.__all__ if name.startswith(n)), key=len)
        assert (getattr(module, public) is getattr(_tegula, name)) == (not row["is_wrapped"])
        names.add((row["module"], public))
    modules = tegula.moe, tegula.quant, tegula.engram, tegula.mhc, tegula.transpose
    assert names == {(m.__name__.removeprefix("tegula."), n) for m in modules for n in m.__all__
                     if callable(getattr(m, n)) and not isinstance(getattr(m, n), type)}


TILE_KERNELS = """
engram.engram_fused_weight_kernel: fused_weight
engram.engram_gate_kernel: engram_gate_fwd engram_gate_bwd
engram.engram_grad_w_reduce_kernel: grad_w_reduce
engram.engram_hash_kernel: engram_hash
modeling.engram: EngramGateFn engram_gate
modeling.engram.engram_gate: EngramGateFn engram_gate
modeling.mhc: expand_from_embedding mhc_head mhc_pre
modeling.mhc.functional: expand_from_embedding mhc_head mhc_pre
modeling.mhc.ops: expand_to_mhc mhc_pre_norm_fn mhc_pre_split_mixes sinkhorn_normalize mhc_pre_apply_mix mhc_post mhc_post_fwd mhc_post_bwd mhc_head_compute_mix mhc_pre_big_fuse mhc_multilayer_recompute
modeling.mhc.ops.expand: expand_to_mhc
modeling.mhc.ops.head_compute_mix: mhc_head_compute_mix
modeling.mhc.ops.multilayer_recompute: mhc_multilayer_recompute
modeling.mhc.ops.norm_fn: mhc_pre_norm_fn
modeling.mhc.ops.post: mhc_post mhc_post_fwd mhc_post_bwd
modeling.mhc.ops.pre_apply_mix: mhc_pre_apply_mix
modeling.mhc.ops.pre_big_fuse: mhc_pre_big_fuse
modeling.mhc.ops.pre_split_mixes: mhc_pre_split_mixes
modeling.mhc.ops.sinkhorn: sinkhorn_normalize
mhc.expand_kernel: expand_to_mhc_fwd_tl expand_to_mhc_bwd_tl
mhc.head_compute_mix_kernel: _mhc_head_compute_mix_fwd _mhc_head_compute_mix_bwd
mhc.multilayer_recompute_kernel: mhc_multilayer_recompute
mhc.norm_fn_kernel: round_to_tf32 _mhc_fn_normw_merge_fwd _mhc_fn_normw_merge_bwd _mhc_pre_norm_fn_fwd_mul _mhc_pre_norm_fn_fwd_norm _mhc_pre_norm_fn_bwd_norm _mhc_pre_norm_fn_bwd_mul
mhc.post_kernel: _mhc_post_fwd _mhc_post_bwd
mhc.pre_apply_mix_kernel: _mhc_pre_apply_mix_fwd _mhc_pre_apply_mix_bwd
mhc.pre_big_fuse_kernel: _mhc_pre_big_fuse
mhc.pre_split_mixes_kernel: _mhc_pre_split_mixes_fwd _mhc_pre_split_mixes_bwd
mhc.sinkhorn_kernel: _mhc_sinkhorn_fwd _mhc_sinkhorn_bwd
moe.aux_fi_kernel: aux_fi
moe.common:
moe.expand_to_fused_kernel: expand_to_fused expand_to_fused_with_sf
moe.get_fused_mapping_kernel: get_fused_mapping
moe.group_count_kernel: group_count
moe.inplace_unique_group_indices_kernel: inplace_unique_group_indices
moe.mask_indices_by_tp_kernel: mask_indices_by_tp
moe.normalize_weight_kernel: normalize_weight
moe.reduce_fused_kernel: reduce_fused
moe.scoring: ScoringFunc
moe.top2_sum_gate_kernel: top2_sum_gate
moe.topk_gate_kernel: topk_gate
moe.topk_sum_and_topk_group_idx_kernel: topk_sum_and_topk_group_idx
quant.cast_back_e5m6_kernel: cast_back_e5m6
quant.cast_back_kernel: cast_back per_token_cast_back
quant.common: unpack_from_e2m1fn_x2
quant.per_block_cast_kernel: per_block_cast per_block_cast_with_precomputed_sf per_block_cast_with_sf_only
quant.per_block_cast_lossless_kernel: per_block_cast_lossless
quant.per_channel_cast_and_transpose_kernel: per_channel_cast_and_transpose
quant.per_channel_cast_fused_kernel: per_channel_cast_fused
quant.per_channel_cast_kernel: per_channel_cast
quant.per_token_cast_kernel: per_token_cast per_token_cast_with_precomputed_sf per_token_cast_with_sf_only
quant.per_token_cast_to_e5m6_kernel: per_token_cast_to_e5m6
quant.swiglu_backward_and_per_token_cast_kernel: swiglu_backward_and_per_token_cast
quant.swiglu_forward_and_per_channel_cast_and_transpose_kernel: swiglu_forward_and_per_channel_cast_and_transpose
quant.swiglu_forward_and_per_token_cast_kernel: swiglu_forward_and_per_token_cast
quant.types: QuantTensor
testing.bench: dtype_to_str make_param_id make_param_key
testing.generator: generate_num_tokens generate_hidden_sizes generate_num_sms generate_moe_params generate_topk_idx generate_e5m6_inputs generate_rand_float
testing.numeric: assert_equal calc_diff check_bias count_bytes
testing.quant: clear_unused_sf
torch.cast: cast cast_back
torch.cast_e5m6: cast_to_e5m6 cast_back_from_e5m6
torch.engram: engram_gate_ref engram_hash_ref make_offsets
torch.expand_to_fused: expand_to_fused expand_to_fused_with_sf
torch.mhc: expand_to_mhc_ref mhc_head_compute_mix_ref mhc_post_ref mhc_pre_apply_mix_ref mhc_pre_norm_fn_ref mhc_pre_split_mixes_ref sinkhorn_normalize_ref
torch.moe: aux_fi group_count inplace_unique_group_indices mask_indices_by_tp normalize_weight
torch.per_channel_cast_fused: per_channel_cast_fused
torch.reduce_fused: reduce_fused
torch.swiglu: swiglu_forward swiglu_backward
torch.topk: stable_topk topk_sum_and_topk_group_idx top2_sum_gate
transpose.batched_transpose_kernel: transpose batched_transpose
config: get_num_sms set_num_sms get_device_num_sms get_max_smem_per_sm
utils: ceil_div align is_power_of_two
"""


@has_torch
@pytest.mark.parametrize("last_first", [False, True])
def test_every_module_of_tile_kernels(last_first):
    """Each can be imported, in whatever order, and is what the package has."""
    run(f"""if True:
        import importlib.util, tegula.as_tile_kernels
        lines = {TILE_KERNELS!r}.split("\\n")[1:-1]
        for line in lines[::-1] if {last_first} else lines:
            path, names = line.split(":")
            module = importlib.import_module("tile_kernels." + path)
            assert importlib.util.find_spec("tile_kernels." + path) is module.__spec__ is not None, line
            package = getattr(tegula, path.split(".")[0])
            for name in names.split():
                here = {{}}
                exec(f"from tile_kernels.{{path}} import {{name}}", here)
                assert here[name] is getattr(module, name), line
                assert name[0] == "_" or here[name] is getattr(package, name, here[name]), line
        import tile_kernels, torch
        from tile_kernels import config
        import tegula.as_tile_kernels           # again
        assert tile_kernels is tegula and config is tegula.config and tegula.testing.__spec__.name == "tegula.testing"
        for name in ("set_num_sms", "get_num_sms", "get_device_num_sms", "get_max_smem_per_sm"):
            assert getattr(tile_kernels, name) is getattr(config, name)
        params = next(iter(tile_kernels.testing.generator.generate_moe_params())) | {{"num_send_tokens": 9}}
        idx = tile_kernels.testing.generator.generate_topk_idx(params)
        lengths = tile_kernels.moe.get_fused_mapping(idx, params["num_experts"], 0, 1)[7]
        assert sum(lengths) == (idx >= 0).sum()
        x = torch.randn(64, 192)[:, :128]
        for transpose in (tile_kernels.transpose.transpose, tile_kernels.torch.transpose):
            tile_kernels.testing.numeric.assert_equal(transpose(x), x.T.contiguous())
        assert callable(tile_kernels.torch.cast) and callable(tile_kernels.torch.expand_to_fused)
        assert tile_kernels.moe.aux_fi_kernel.aux_fi is tegula.moe.aux_fi
        assert [tile_kernels.utils.align(n, 4) for n in (0, 1, 4, 5)] == [0, 4, 4, 8]
        assert [tile_kernels.utils.is_power_of_two(n) for n in (-2, 0, 1, 6, 8)] == [False, False, True, False, True]
        groups = tile_kernels.torch.topk_sum_and_topk_group_idx(
            torch.arange(8.0).view(1, 4, 2), num_group_sum_topk=2, num_topk_groups=1)
        assert groups.tolist() == [[3]]
        try: tile_kernels.moe.aux_fi_kernel.get_aux_fi_kernel
        except AttributeError as e: assert "tile_kernels.moe.aux_fi_kernel.get_aux_fi_kernel is not in tegula" in str(e)
        else: raise AssertionError

        def sentence(statement):
            try: exec(statement)
            except ImportError as e: return str(e)
            raise AssertionError(statement)

        assert "nonsense" in sentence("import tile_kernels.nonsense")""")


V2 = """
config: get_device get_device_num_sms get_max_smem_per_sm get_num_sms get_pdl is_ascend set_num_sms set_pdl
engram: engram_gate_fwd engram_hash engram_sinkhorn_finalize engram_sinkhorn_momentum_update engram_sinkhorn_step
mhc.post_kernel: mhc_post_fwd mhc_post_bwd
modeling.engram: EngramGateFn engram_gate
rand: randn randn_like set_seed
testing: bench clear_unused_sf generator numeric quant
testing.bench: dtype_to_str make_param_id make_param_key
testing.generator: generate_hidden_sizes generate_num_sms generate_num_tokens generate_rand_float generate_samples get_test_level
testing.numeric: assert_equal calc_diff check_bias count_bytes
testing.quant: clear_unused_sf
torch: engram_gate_ref sinkhorn_normalize_ref
torch.engram: engram_sinkhorn_finalize_ref engram_sinkhorn_momentum_update_ref engram_sinkhorn_step_ref
utils: align ceil_div dtype_to_str is_power_of_two next_power_of_two str_to_dtype
"""


@has_torch
@pytest.mark.parametrize("last_first", [False, True])
def test_v2_as_tile_kernels(last_first):
    """Its modules are those of tegula.v2, in whatever order they are imported, and nothing is left of 1.0's."""
    run(f"""if True:
        import importlib, sys, tegula.as_tile_kernels
        from tile_kernels.torch.engram import engram_sinkhorn_step_ref as before
        from tile_kernels import quant
        for _ in range(2): tegula.as_tile_kernels.use_v2()
        lines = {V2!r}.split("\\n")[1:-1]
        for line in lines[::-1] if {last_first} else lines:
            path, names = line.split(":")
            module = importlib.import_module("tile_kernels." + path)
            assert module is importlib.import_module("tegula.v2." + path), line
            for name in names.split():
                here = {{}}
                exec(f"from tile_kernels.{{path}} import {{name}}", here)
                assert here[name] is getattr(module, name), line
        import tile_kernels
        from tile_kernels.torch.engram import engram_sinkhorn_step_ref as after
        assert tile_kernels is tegula.v2 and tile_kernels.config.set_num_sms is tegula.set_num_sms is tile_kernels.set_num_sms
        assert before is tegula.torch.engram.engram_sinkhorn_step_ref is not after
        assert quant is tegula.quant        # of 1.0: it is not in tegula.v2
        from tile_kernels.engram.engram_gate_kernel import engram_gate_fwd
        from tile_kernels.engram.engram_sinkhorn_kernel import engram_sinkhorn_finalize, engram_sinkhorn_step_reduce
        assert engram_sinkhorn_finalize is tegula.v2.engram.engram_sinkhorn_finalize
        from tile_kernels.modeling.engram.engram_gate import engram_gate
        assert engram_gate_fwd is tegula.v2.engram.engram_gate_fwd and engram_gate is tegula.v2.modeling.engram.engram_gate
        for name in "quant", "quant.per_token_cast_kernel", "moe.topk_gate_kernel", "nonsense":
            try: importlib.import_module("tile_kernels." + name)
            except ModuleNotFoundError as e: assert "tegula.v2." + name.split(".")[0] in str(e), e
            else: raise AssertionError(name)""")


@has_torch
def test_v2_falls_back(tmp_path):
    for name, text in (("__init__", ""), ("engram", "def only_theirs(): return 5\ndef engram_hash(): return 'theirs'"),
                       ("transform", "from tile_kernels.engram import engram_hash")):
        path = tmp_path / "tile_kernels" / (name + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    run(f"""if True:
        import sys, warnings
        warnings.simplefilter("ignore")
        sys.path.insert(0, {str(tmp_path)!r})
        import tegula.as_tile_kernels
        tegula.as_tile_kernels.use_v2()
        tegula.as_tile_kernels.fall_back()
        tegula.as_tile_kernels.use_v2()
        from tile_kernels.engram import engram_hash, only_theirs
        from tile_kernels import transform
        assert only_theirs() == 5 and transform.engram_hash is engram_hash is tegula.v2.engram.engram_hash
        assert not hasattr(tegula.engram, "only_theirs")""")
    run(f"""if True:
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import tegula.as_tile_kernels
        tegula.as_tile_kernels.fall_back()
        try: tegula.as_tile_kernels.use_v2()
        except RuntimeError as e: assert "before" in str(e)
        else: raise AssertionError""")


def test_as_tile_kernels_does_not_replace_the_real_one():
    run("""if True:
        import sys, types
        sys.modules["tile_kernels"] = real = types.ModuleType("tile_kernels")
        try: import tegula.as_tile_kernels
        except ImportError: pass
        else: raise AssertionError
        assert sys.modules["tile_kernels"] is real""")


@pytest.mark.parametrize("is_v2", [False, pytest.param(True, marks=has_torch)])
def test_what_the_drop_in_lacks(is_v2, tmp_path):
    """Messages have the name that was imported, and say how to get what tegula lacks."""
    (tmp_path / "tile_kernels.py").touch()
    real, module = ("tegula.v2", "testing") if is_v2 else ("tegula", "moe")
    out = run(f"""if True:
        import sys, tegula.as_tile_kernels
        sys.path.insert(0, {str(tmp_path)!r})
        if {is_v2}: tegula.as_tile_kernels.use_v2()
        import {real}.{module}

        def said(statement):
            try: exec(statement, {{}})
            except (ImportError, AttributeError) as e: print(f"{{type(e).__name__}}: {{e}} [{{e.name}}]")
            else: raise AssertionError(statement)

        for _ in range(2):
            said("import tile_kernels.attention")
            said("import tile_kernels.attention.deep")
            said("import tile_kernels.{module}.nosuch")
            said("from tile_kernels.engram import engram_hash_kernel; engram_hash_kernel.nosuch")
            tegula.as_tile_kernels.fall_back()
        assert not hasattr({real}, "nosuch") and not hasattr({real}.{module}, "nosuch")""").splitlines()
    hints = ("tegula.as_tile_kernels.fall_back() takes what tegula lacks from an installed tile_kernels",
             "the installed tile_kernels has none either")
    kernel = "tile_kernels.engram.engram_hash_kernel"
    for hint, lines in zip(hints, (out[:4], out[4:])):
        def not_a_module(name, missing):
            return f"ModuleNotFoundError: No module named 'tile_kernels.{name}': there is no {real}.{missing}; {hint} [tile_kernels.{name}]"

        assert lines == [
            not_a_module("attention", "attention"), not_a_module("attention", "attention"),
            not_a_module(f"{module}.nosuch", f"{module}.nosuch"),
            f"AttributeError: {kernel}.nosuch is not in tegula: of this module it has engram_hash, not what its kernels are made "
            f"of; {hint} [nosuch]"]


def test_falls_back_to_the_installed_tile_kernels_on_request(tmp_path):
    """A tile_kernels with an op, a package and a kernel builder that tegula lacks. It imports itself by its own name."""
    files = {
        "__init__.py": "from . import moe, sparse",
        "moe/__init__.py": "from .only_theirs_kernel import only_theirs\ndef topk_gate(): return 'theirs'",
        "moe/only_theirs_kernel.py": "from tile_kernels.utils import align\ndef only_theirs(n): return align(n, 4)",
        "moe/topk_gate_kernel.py": "def get_topk_gate_kernel(): return 'builder'",
        "sparse/__init__.py": "from tile_kernels.moe import topk_gate, only_theirs\ndef pick(): return topk_gate",
        "broken.py": "import a_package_that_is_not_there",
    }
    for name, text in files.items():
        path = tmp_path / "tile_kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    code = """if True:
        import sys, warnings
        sys.path.insert(0, {folder!r})
        import tegula.as_tile_kernels

        def fails(statement):
            try: exec(statement, {{}})
            except (ImportError, AttributeError) as e: return str(e)
            raise AssertionError(statement)

        for statement in ("from tile_kernels.moe import only_theirs", "import tile_kernels.sparse",
                          "from tile_kernels.moe.topk_gate_kernel import get_topk_gate_kernel"):
            fails(statement)
        if not {exists}:
            assert "no tile_kernels is installed" in fails("import tegula.as_tile_kernels as a; a.fall_back()")
            sys.exit()
        for _ in range(2): tegula.as_tile_kernels.fall_back()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            from tile_kernels.moe import only_theirs, topk_gate
            from tile_kernels.moe import only_theirs
            import tile_kernels.sparse
            from tile_kernels.moe.topk_gate_kernel import get_topk_gate_kernel, topk_gate as same
        assert only_theirs(5) == 8 and get_topk_gate_kernel() == "builder"
        assert topk_gate is same is tile_kernels.sparse.pick() is tegula.moe.topk_gate     # ours, in their code too
        names = [str(w.message).split()[0] for w in seen]
        assert sorted(set(names)) == ["tile_kernels.moe.only_theirs", "tile_kernels.moe.topk_gate_kernel.get_topk_gate_kernel",
                                      "tile_kernels.sparse"] and len(names) == 3, names
        assert "nonsense" in fails("import tile_kernels.nonsense")
        assert "nonsense" in fails("from tile_kernels.moe import nonsense")
        assert "a_package_that_is_not_there" in fails("import tile_kernels.broken")
        assert tegula.as_tile_kernels.__name__ == "tegula.as_tile_kernels" and not hasattr(tegula.moe, "nonsense")"""
    run(code.format(folder=str(tmp_path), exists=True))
    run(code.format(folder=str(tmp_path / "empty"), exists=False))
