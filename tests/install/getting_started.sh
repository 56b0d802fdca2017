# SPDX-License-Identifier: MIT
# The commands of docs/getting-started.md in their order, in the folder of the sources. test_pages.py runs this file after a
# build; CI runs it in a fresh clone.
set -eu

# doc: build
make build
build/bin/tegula demo
# end

# doc: install
cmake --install build --prefix "$HOME/tegula"
"$HOME/tegula/bin/tegula" info
# end

# doc: cmake
cmake -S examples -B "$HOME/examples" -DCMAKE_PREFIX_PATH="$HOME/tegula"
cmake --build "$HOME/examples"
"$HOME/examples/errors"
# end

# doc: pkg-config
export PKG_CONFIG_PATH="$HOME/tegula/lib/pkgconfig"
cc examples/transpose.c -o "$HOME/transpose" $(pkg-config --cflags --libs tegula) -Wl,-rpath,"$HOME/tegula/lib"
"$HOME/transpose"
# end

# doc: python
PYTHONPATH=build/python python3 examples/transpose.py
# end
