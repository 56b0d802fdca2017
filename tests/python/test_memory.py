# SPDX-License-Identifier: MIT
"""Nothing leaks, and outputs own their memory."""
import gc
import sys

import pytest
import torch

from tegula.transpose import batched_transpose, transpose


def resident_kb():
    return int(open("/proc/self/statm").read().split()[1]) * 4


def test_no_leaks(device):
    x, b = torch.randn(16, 256, device=device), torch.randn(3, 16, 8, device=device)
    out = transpose(x)
    batched_transpose(b)

    def work(count):
        for i in range(count):
            transpose(x)
            batched_transpose(b[:, :1 + i % 16])            # another shape every time
            transpose(x, out=out)
            try:
                transpose(b)
            except ValueError:
                pass
        gc.collect()

    def growth():
        """Of memory, of references to our tensors, to objects that all tests share, and on the GPU."""
        ours, shared = (x, b, out), (None, True, x.dtype, torch.Tensor)
        counts = [[sys.getrefcount(o) for o in objects] for objects in (ours, shared)]
        kb, allocated = resident_kb(), torch.cuda.memory_allocated() if device == "cuda" else 0
        work(20000)
        return (resident_kb() - kb,
                *([sys.getrefcount(o) - n for o, n in zip(*pair)] for pair in zip((ours, shared), counts)),
                (torch.cuda.memory_allocated() if device == "cuda" else 0) - allocated)

    # A leak by one of the 16 shapes alone makes 1250 references, every time. What earlier tests left behind may be freed
    # meanwhile, but only once.
    work(2000)
    for _ in range(3):
        kb, ours, shared, allocated = growth()
        if all(abs(change) < 1000 for change in shared):
            break
    assert kb < 3000 and all(abs(change) < 10 for change in ours), (kb, ours)
    assert all(abs(change) < 1000 for change in shared), shared
    assert allocated == 0


def test_slow_paths_do_not_leak(device):
    class Sub(torch.Tensor):
        pass

    x = torch.randn(16, 24, device=device)
    sub, grad = x.as_subclass(Sub), x.clone().requires_grad_()
    counts = [sys.getrefcount(o) for o in (x, sub, grad)]
    for _ in range(100):
        transpose(sub)
        transpose(grad).sum().backward()
        torch.vmap(transpose)(x[None])
    gc.collect()
    assert [sys.getrefcount(o) for o in (x, sub, grad)] == counts


def test_outputs_live_on(device):
    x = torch.randn(33, 65, device=device)
    want = x.t().contiguous()
    kept = [transpose(x) for _ in range(50)]
    del x
    gc.collect()
    junk = [torch.full((65, 33), 7.0, device=device) for _ in range(50)]
    assert all(torch.equal(k, want) for k in kept) and junk


def test_outputs_are_ordinary_tensors(device):
    y = transpose(torch.randn(33, 65, device=device))
    assert y.untyped_storage().nbytes() == 33 * 65 * 4
    y.untyped_storage().resize_(0)
    z = transpose(torch.randn(33, 65, device=device))
    assert z.add_(1)._version == 1 and z.is_leaf and not z.requires_grad
    assert z.resize_(100, 100).shape == (100, 100)


@pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="CPython only")
def test_failed_calls_keep_nothing(device):
    x, out = torch.randn(5, 7, device=device), torch.empty(5, 7, device=device)
    counts = sys.getrefcount(x), sys.getrefcount(out)
    for _ in range(10):
        with pytest.raises(ValueError):
            transpose(x, out=out)
    assert (sys.getrefcount(x), sys.getrefcount(out)) == counts
