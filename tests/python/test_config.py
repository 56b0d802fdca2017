# SPDX-License-Identifier: MIT
"""Settings, warm-up, and what is reported where there is no GPU."""
import importlib.util
import os
import subprocess
import sys

import pytest

import tegula
from tegula import config


def on_gpu():
    try:
        tegula._tegula.get_device_num_sms(0)
        return True
    except tegula.Error:
        return False


def test_num_sms():
    count = config.get_device_num_sms()
    before = config.get_num_sms()
    assert count >= 1 and (on_gpu() or count == 132)
    try:
        config.set_num_sms(count - 1)
        assert config.get_num_sms() == tegula.get_num_sms() == count - 1
        for bad in (0, -1, count + 1):
            with pytest.raises(AssertionError, match=rf"num_sms: is {bad}, want 1\.\.{count}"):
                config.set_num_sms(bad)
        for bad in (1.5, "a", None):
            with pytest.raises(TypeError, match=f"^num_sms: is {bad!r}, want an integer$"):
                config.set_num_sms(bad)
        assert config.get_num_sms() == count - 1
    finally:
        config.set_num_sms(before)


def test_smem():
    assert config.get_max_smem_per_sm() >= 64 * 1024


def test_pdl():
    before = config.get_pdl()
    for on in (False, True):
        config.set_pdl(on)
        assert config.get_pdl() is on
    config.set_pdl(before)


def test_jit_mode():
    before = config.get_jit_mode()
    for mode in ("never", "auto"):
        config.set_jit_mode(mode)
        assert config.get_jit_mode() == mode
    config.set_jit_mode(before)
    with pytest.raises(ValueError, match="mode: is 'always', want one of 'auto', 'never'"):
        config.set_jit_mode("always")


def test_cache_dir(tmp_path):
    """In a process of its own: the folder is asked for once kernels are needed."""
    code = f"""if True:
        import pathlib, tegula
        tegula.config.set_cache_dir({str(tmp_path)!r})
        assert tegula.config.get_cache_dir() == {str(tmp_path)!r}, tegula.config.get_cache_dir()
        tegula.config.set_cache_dir(pathlib.Path({str(tmp_path)!r}))
        tegula.config.set_cache_dir("")
        assert tegula.config.get_cache_dir() == ""
        tegula.config.set_cache_dir(None)"""
    tmp_path.chmod(0o700)
    subprocess.run([sys.executable, "-c", code], check=True)


def test_environment():
    code = "from tegula.config import *; print(get_num_threads(), get_jit_mode(), get_pdl())"
    env = {**os.environ, "TEGULA_NUM_THREADS": "3", "TEGULA_JIT": "never", "TEGULA_PDL": "0"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert done.stdout.split() == ["3", "never", "False"]


def test_bad_settings():
    with pytest.raises(ValueError):
        config.set_num_threads(-1)
    with pytest.raises(TypeError):
        config.set_num_threads("two")
    before = config.get_num_threads(), config.get_jit_mode()
    for function in ("set_num_threads", "set_jit_mode", "get_num_sms", "get_device_num_sms", "get_max_smem_per_sm"):
        with pytest.raises(OverflowError):
            getattr(tegula._tegula, function)(2**32 + 1)
    assert (config.get_num_threads(), config.get_jit_mode()) == before


@pytest.mark.skipif(on_gpu(), reason="there is a GPU")
def test_no_gpu():
    """A missing driver is an error only for who asks for CUDA."""
    with pytest.raises(tegula.Error) as raised:
        with tegula.warmup():
            raise AssertionError("not reached")
    assert raised.value.status == "TGL_ERR_DEVICE" and str(raised.value)


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="no NumPy here")
def test_warmup_for_an_architecture():
    """Checks arguments and writes nothing; ends whatever happens inside."""
    import numpy
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            with tegula.warmup(architecture="sm_90a"):
                1 / 0
    with tegula.warmup(architecture="sm_90a"):
        with pytest.raises(ValueError, match="out: shape"):
            tegula.transpose.transpose(numpy.ones((3, 5)), out=numpy.ones((3, 5)))
    assert (tegula.transpose.transpose(numpy.ones((3, 5))) == 1).all()


def test_compile_count():
    assert isinstance(tegula.compile_count(), int)
