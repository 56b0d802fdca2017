# SPDX-License-Identifier: MIT
# tegula_embed_kernels(<output.c> <folder>): makes a C file that holds the text of all kernels, <folder>/*/*.cu, and of the
# headers they include, from <folder> and from src. tools/embed.c finds the headers itself and tells the build tool what it read, so that
# a changed header makes the file anew. When cross-compiling, name an embed built for the host:
# -DTEGULA_EMBED=/path/to/embed.
function(tegula_embed_kernels output folder)
    file(GLOB kernels CONFIGURE_DEPENDS ${folder}/*/*.cu)
    if(TARGET tegula_embed)
        set(embed tegula_embed)
        set(program ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:tegula_embed>)
    elseif(TEGULA_EMBED)
        set(embed ${TEGULA_EMBED})
        set(program ${TEGULA_EMBED})
    elseif(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
        message(FATAL_ERROR "cross-compiling: build tools/embed.c for this machine, name it: -DTEGULA_EMBED=")
    else()
        add_executable(tegula_embed ${PROJECT_SOURCE_DIR}/tools/embed.c)
        target_link_libraries(tegula_embed PRIVATE tegula_flags)
        set_target_properties(tegula_embed PROPERTIES OUTPUT_NAME embed
                              RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/embed)
        set(embed tegula_embed)
        set(program ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:tegula_embed>)
    endif()
    # LeakSanitizer takes four seconds on aarch64 to find that a program has no leaks.
    add_custom_command(OUTPUT ${output}
        COMMAND ${CMAKE_COMMAND} -E env ASAN_OPTIONS=detect_leaks=0 ${program}
                -I ${PROJECT_SOURCE_DIR}/src ${folder} ${output} ${output}.d ${kernels}
        DEPENDS ${embed} ${kernels}
        DEPFILE ${output}.d
        COMMENT "Embedding kernels" VERBATIM)
endfunction()
