# SPDX-License-Identifier: MIT
# cmake -DSOURCE=folder -DOUTPUT=file -P commit.cmake: writes the commit that is being built, for records of measurements.
# A step of every build, since configuring once would go stale; the file is touched only when it changes.
cmake_minimum_required(VERSION 3.22)
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define TEGULA_COMMIT \"@commit@\"\n" @ONLY)
