# SPDX-License-Identifier: MIT
# Part of `cmake --install`: copies the documents of `source` to `documents`. A link to a file that is not installed beside
# them becomes its path in the sources: [cpu.h](../src/core/cpu.h) is `src/core/cpu.h`, and [the emulated
# device](../tests/emulator/README.md) is the emulated device (`tests/emulator/README.md`).
file(GLOB_RECURSE names RELATIVE ${source} ${source}/docs/*)
set(missing "\\(([.][.]/)*((bench|cases|include|python|scripts|src|tests|tools)/[^)]+|examples/op)\\)")
file(REMOVE_RECURSE ${documents})
foreach(name README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md ${names})
    if(name MATCHES "[.]md$")
        file(READ ${source}/${name} text)
        string(REGEX REPLACE "\\[[^][ ]+[./][a-z]+\\]${missing}" "`\\2`" text "${text}")
        string(REGEX REPLACE "\\[([^][]+)\\]${missing}" "\\1 (`\\3`)" text "${text}")
        file(WRITE ${documents}/${name} "${text}")
    else()
        configure_file(${source}/${name} ${documents}/${name} COPYONLY)
    endif()
endforeach()
