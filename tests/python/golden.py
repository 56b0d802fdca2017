# SPDX-License-Identifier: MIT
"""Reads recorded cases (tests/golden/README.md): inputs as tensors laid out as the manifest says, and
comparisons as it says."""

import json
import pathlib

import numpy
import torch

FOLDER = pathlib.Path(__file__).parent.parent / "golden"
DTYPES = {
    "f32": torch.float32, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn, "e2m1x2": torch.int8, "e5m6": torch.uint8, "ue8m0x4": torch.int32, "bool": torch.bool,
}
STORED = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8, torch.int8: torch.uint8, torch.bool: torch.uint8}


class Case:
    def __init__(self, domain, row):
        self.op, self.name, self.args = row["op"], row["case"], row["args"]
        self.rows = {t["name"]: t for t in row["tensors"]}
        self.folder = FOLDER / domain / self.op / self.name

    def __str__(self):
        return f"{self.op}-{self.name}"

    def tensor(self, name, device="cpu"):
        """A recorded tensor, with the strides of the manifest."""
        row = self.rows[name]
        dtype = DTYPES[row["dtype"]]
        stored = numpy.load(self.folder / f"{name}.npy")
        if stored.dtype == numpy.uint16:
            stored = stored.view(numpy.int16)
        packed = torch.from_numpy(stored).view(STORED.get(dtype, dtype)).reshape(row["shape"]).to(device)
        strides = row.get("strides")
        if strides is None:
            return packed.view(dtype)
        laid_out = torch.empty_strided(row["shape"], strides, dtype=packed.dtype, device=device)
        return laid_out.copy_(packed).view(dtype)

    def inputs(self, device="cpu"):
        return {name: self.tensor(name, device) for name, row in self.rows.items() if row["role"] == "in"}

    def check(self, name, got):
        """Asserts that `got` is the recorded output."""
        row, want = self.rows[name], self.tensor(name)
        assert got.dtype == want.dtype, f"{self}: {name}: dtype is {got.dtype}, want {want.dtype}"
        assert list(got.shape) == row["shape"], f"{self}: {name}: shape is {list(got.shape)}, want {row['shape']}"
        strides = [pair for size, *pair in zip(got.shape, got.stride(), want.stride()) if size > 1 and got.numel()]
        assert all(a == b for a, b in strides), f"{self}: {name}: strides are {got.stride()}, want {want.stride()}"
        if row.get("skip_rows"):
            keep = [i for i in range(got.shape[0]) if i not in set(row["skip_rows"])]
            got, want = bits(got)[keep].view(want.dtype), bits(want)[keep].view(want.dtype)
        problem = compare(got.cpu(), want, row["compare"])
        assert not problem, f"{self}: {name}: {problem}"


def bits(x):
    """The elements as integers of the same size."""
    return x.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def compare(got, want, how):
    """None, or a sentence that says where two tensors differ by the manifest's rule."""
    if want.numel() == 0:
        return None
    mode = how["mode"]
    if mode == "calc_diff":
        a, e = got.double(), want.double()
        scale = float((a * a + e * e).sum())
        diff = 1 - 2 * float((a * e).sum()) / scale if scale else 0.0
        return None if diff < how["max"] else f"calc_diff is {diff:.3e}, want less than {how['max']:.1e}"
    same = bits(got) == bits(want)
    if want.is_floating_point() and not (mode == "bits" and how.get("nan_payload")):
        same = same | (got.float().isnan() & want.float().isnan())
    wrong = ~same
    if mode == "close":
        a, e = got.double(), want.double()
        wrong &= ~((a - e).abs() <= how["atol"] + how["rtol"] * e.abs())
    elif mode == "bf16":
        limit = 1 + how["mismatch"] * want.numel()
        wrong &= got.float() != want.float()        # zeros of either sign are equal
        if int(wrong.sum()) > limit:
            return f"{int(wrong.sum())} elements differ in bits, want at most {limit:g}"
        steps = (ordered(got) - ordered(want)).abs() <= how["ulp"]
        wrong &= ~(steps | ((got.double() - want.double()).abs() <= how["atol"]))
    elif mode != "bits":
        return f"the manifest's mode {mode} is unknown"
    if not wrong.any():
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    values = f"{got[at].item()}, want {want[at].item()} ({mode})"
    return f"{int(wrong.sum())} of {want.numel()} elements differ, first at {list(at)}: {values}"


def ordered(x):
    """bf16 as integers in the order of the numbers: neighbours differ by 1, -0 and 0 are the same."""
    code = bits(x).to(torch.int32)
    return torch.where(code < 0, -(code & 0x7FFF), code)


def cases(domain):
    path = FOLDER / domain / "manifest.json"
    return [Case(domain, row) for row in json.loads(path.read_text())["cases"]] if path.exists() else []
