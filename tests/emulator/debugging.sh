# SPDX-License-Identifier: MIT
# Commands of docs/debugging-kernels.md, which debugging.py runs: each function in a shell of its own, in a
# folder that looks like the repository with its build folder.

one_case() {
    # doc: one_case
    export TEGULA_LIBCUDA="$PWD/build/lib/libcuda_emulated.so"
    export TEGULA_LIBNVRTC="$PWD/build/lib/libnvrtc_emulated.so"
    build/bin/tegula check transpose num_rows=64 num_cols=128 dtype=bf16 --device cuda
    # end
}

seeds() {
    # doc: seeds
    for seed in 1 2 3 4 5 6 7 8; do
        EMU_SEED=$seed build/bin/tegula check transpose num_rows=64 num_cols=128 dtype=bf16 --device cuda
    done
    # end
}

debugger() {
    # doc: debugger
    TEGULA_CACHE_DIR="" EMU_OPT="-O0 -g" EMU_SEED=5 gdb -q -batch -d src -x tests/emulator/transpose.gdb \
        --args build/bin/tegula check transpose num_rows=64 num_cols=128 dtype=bf16 --device cuda
    # end
}

planted() {
    # doc: planted
    SHOW=1 build/tests/test_faults planted
    # end
}

"$1"
