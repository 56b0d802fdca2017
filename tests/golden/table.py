# SPDX-License-Identifier: MIT
"""Writes the C table of all recorded cases: what the manifests say, and where in its file each tensor's bytes begin.

    python3 tests/golden/table.py tests/golden > golden_table.c

A file whose header disagrees with its manifest is an error here, at build time.
"""
import ast, json, pathlib, struct, sys

# dtype in a manifest -> (dtype of the library, what NumPy calls it in the file)
DTYPES = {
    "f32": ("TGL_F32", "<f4"), "i32": ("TGL_I32", "<i4"), "i64": ("TGL_I64", "<i8"), "u8": ("TGL_U8", "|u1"),
    "bool": ("TGL_BOOL", "|u1"), "bf16": ("TGL_BF16", "<u2"), "e4m3": ("TGL_E4M3", "|u1"),
    "e2m1x2": ("TGL_E2M1X2", "|u1"), "e5m6": ("TGL_U8", "|u1"), "ue8m0x4": ("TGL_I32", "<i4"),
}
MODES = {"bits": "CASE_BITS", "close": "CASE_CLOSE", "calc_diff": "CASE_CALC_DIFF", "bf16": "CASE_BF16"}
COMPARE_KEYS = {"mode", "nan_payload", "atol", "rtol", "max", "mismatch", "ulp"}
TENSOR_KEYS = {"name", "role", "dtype", "shape", "strides", "compare", "updates", "skip_rows"}


def text(s):
    return json.dumps(s)        # a JSON string of printable ASCII is a C string


def numbers(values):
    return "{ " + ", ".join(str(int(v)) for v in values) + " }" if values else "{ 0 }"


def npy_header(path):
    """(dtype, shape, where the data begins, its bytes) of a .npy file of format 1 or 2, in C order."""
    data = path.read_bytes()
    if data[:6] != b"\x93NUMPY" or data[6] not in (1, 2):
        raise ValueError(f"{path}: not a .npy file of version 1 or 2")
    size, = struct.unpack_from("<H" if data[6] == 1 else "<I", data, 8)
    begin = (10 if data[6] == 1 else 12) + size
    header = ast.literal_eval(data[begin - size:begin].decode("latin1"))
    if header["fortran_order"]:
        raise ValueError(f"{path}: is in Fortran order")
    return header["descr"], list(header["shape"]), begin, len(data) - begin


def tensor_row(folder, t):
    unknown = set(t) - TENSOR_KEYS | set(t.get("compare", {})) - COMPARE_KEYS
    if unknown or t["role"] not in ("in", "out") or (t["role"] == "out") != ("compare" in t):
        raise ValueError(f"{folder} {t['name']}: {unknown or 'role and compare do not fit'}")
    dtype, stored = DTYPES[t["dtype"]]
    path = folder / f"{t['name']}.npy"
    descr, shape, begin, size = npy_header(path)
    count = 1
    for n in shape:
        count *= n
    if descr != stored or shape != t["shape"] or size != count * int(stored[2]):
        raise ValueError(f"{path}: is {descr} {shape} in {size} bytes, want {stored} {t['shape']}")
    strides, stride = [], 1
    for n in reversed(shape):
        strides.insert(0, stride)
        stride *= max(n, 1)
    how = t.get("compare", {"mode": "bits"})
    fields = [f".mode = {MODES[how['mode']]}", f".nan_payload = {str(how.get('nan_payload', False)).lower()}"]
    fields += [f".{key} = {how[key]!r}" for key in ("atol", "rtol", "max", "mismatch", "ulp") if key in how]
    row = [text(t["name"]), "CASE_OUT" if t["role"] == "out" else "CASE_IN", dtype, str(len(shape)), numbers(shape),
           numbers(t.get("strides", strides)), "{ " + ", ".join(fields) + " }",
           text(t["updates"]) if "updates" in t else "NULL", str(begin),
           f"(const int64_t[]){numbers(t['skip_rows'])}" if "skip_rows" in t else "NULL", str(len(t.get("skip_rows", [])))]
    return "{ " + ", ".join(row) + " }"


def argument(value):
    """Scalar arguments as text: null, true, 3, 0.5, bf16, [1, 128]."""
    return value if isinstance(value, str) else json.dumps(value)


def main(root):
    print('/* Made by tests/golden/table.py. */\n#include "golden.h"\n')
    print(f"const char golden_folder[] = {text(str(root.resolve()))};\n")
    rows = []
    for manifest in sorted(root.glob("*/manifest.json")):
        domain = manifest.parent.name
        contents = json.loads(manifest.read_text())
        if contents["format"] != 1 or contents["domain"] != domain:
            raise ValueError(f"{manifest}: format {contents['format']} of {contents['domain']}")
        for c in contents["cases"]:
            n = len(rows)
            tensors = [tensor_row(manifest.parent / c["op"] / c["case"], t) for t in c["tensors"]]
            print(f"static const golden_tensor tensors_{n}[] = {{")
            print("".join(f"    {t},\n" for t in tensors) + "    { .name = NULL },\n};")
            args = ", ".join(f"{{ {text(k)}, {text(argument(v))} }}" for k, v in c["args"].items())
            print(f"static const golden_argument arguments_{n}[] = {{ {args}{', ' if args else ''}{{ NULL, NULL }} }};\n")
            rows.append(f"    {{ {text(domain)}, {text(c['op'])}, {text(c['case'])}, arguments_{n}, tensors_{n} }},")
    print("const golden_case golden_cases[] = {")
    print("\n".join(rows))
    print("    { .domain = NULL },\n};")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
