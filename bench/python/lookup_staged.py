# SPDX-License-Identifier: MIT
"""Rows of a table in host memory: read by the kernel of engram_lookup where they are, or brought by the copy engine.

    PYTHONPATH=build/python python bench/python/lookup_staged.py [--gib 16] [--tokens 1,128,8192]

Four ways to the same packed rows (256 codes and 8 scale factors each, 24 rows a token), in microseconds from the
first command to the end of the last, indices on the device at the start and rows there at the end:

    kernel    engram_lookup, which reads rows over the bus, with 16 SMs and with all
    staged    engram_lookup_staged: indices to the host, rows gathered by the CPU into page-locked memory, one copy
    rows      indices to the host, then a copy of the copy engine for each row, up to 4096 rows
    copy      one copy of as many bytes that lie one behind the other: what the copy engine can do at most

The table is of records: a row's codes and factors side by side. `tegula bench engram_lookup_staged` has both kinds.
"""
import argparse
import ctypes
import statistics
import time

import torch

from tegula import engram

DIM, COLUMNS, SF = 256, 24, 8
ROW = DIM + SF


def time_us(call, repeats):
    times = []
    for i in range(repeats + 3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(times[3:])


def make_table(gib):
    """Page-locked, a record of ROW bytes a row; 64 MiB of random bytes again and again."""
    num_rows = (gib << 30) // (ROW)
    table = torch.empty(num_rows, ROW, dtype=torch.uint8)
    part = torch.randint(0, 256, (min(num_rows, 1 << 18), ROW), dtype=torch.uint8)
    part[:, DIM:] = part[:, DIM:] % 12 + 120
    for first in range(0, num_rows, len(part)):
        table[first:first + len(part)] = part[:num_rows - first]
    status = torch.cuda.cudart().cudaHostRegister(table.data_ptr(), table.numel(), 0)
    if int(status):
        raise SystemExit(f"cudaHostRegister: {status}")
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--tokens", default="1,16,128,1024,8192")
    options = parser.parse_args()
    table = make_table(options.gib)
    copy_row = ctypes.CDLL("libcuda.so.1").cuMemcpyHtoDAsync_v2
    copy_row.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    codes, factors = table[:, :DIM].view(torch.float8_e4m3fn), table[:, DIM:]
    print(f"{torch.cuda.get_device_name()}, a table of {options.gib} GiB, us")
    print(f"{'tokens':>7} {'kernel, 16 SMs':>15} {'all SMs':>9} {'staged':>9} {'rows':>9} {'copy':>9}")
    for tokens in map(int, options.tokens.split(",")):
        n = tokens * COLUMNS
        indices = torch.randint(0, len(table), (tokens, COLUMNS), dtype=torch.int32, device="cuda")
        on_host = torch.empty(indices.shape, dtype=indices.dtype, pin_memory=True)
        staging = torch.empty(-(-4 * n // 256) * 256 + n * ROW, dtype=torch.uint8, pin_memory=True)
        staged_rows = staging[-n * ROW:].view(tokens, COLUMNS, ROW)
        out = torch.empty(staged_rows.shape, dtype=torch.uint8, device="cuda")
        to, begin = out.data_ptr(), table.data_ptr()

        def kernel(num_sms):
            return engram.engram_lookup(codes, indices, factors, packed=True, num_sms=num_sms)

        def fetch():
            on_host.copy_(indices, non_blocking=True)
            torch.cuda.current_stream().synchronize()

        def staged():
            engram.engram_lookup_staged(codes, indices, factors, staging, out=out)

        def rows():
            fetch()
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            for i, row in enumerate(on_host.view(-1).tolist()):
                if copy_row(to + i * ROW, begin + row * ROW, ROW, stream):
                    raise SystemExit("cuMemcpyHtoDAsync failed")

        expected = table[indices.cpu().long().view(-1)].view(out.shape).cuda()
        for call in (staged, rows) if n <= 4096 else (staged,):
            out.zero_()
            call()
            torch.cuda.synchronize()
            assert torch.equal(out, expected), call.__name__
        assert torch.equal(kernel(16), expected), "kernel"
        repeats = 30 if tokens <= 1024 else 10
        figures = [time_us(lambda: kernel(16), repeats), time_us(lambda: kernel(0), repeats), time_us(staged, repeats),
                   time_us(rows, 5) if n <= 4096 else float("nan"),
                   time_us(lambda: out.copy_(staged_rows, non_blocking=True), repeats)]
        print(f"{tokens:7} {figures[0]:15.1f} " + " ".join(f"{f:9.1f}" for f in figures[1:]))
    torch.cuda.cudart().cudaHostUnregister(table.data_ptr())


if __name__ == "__main__":
    main()
