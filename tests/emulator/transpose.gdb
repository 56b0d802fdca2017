# SPDX-License-Identifier: MIT
# The session of docs/debugging-kernels.md; debugging.py runs it.
set width 100
set style enabled off
set print frame-arguments none
# doc: commands
set breakpoint pending on
break tile_put if emu_self()->tid == 77 && emu_self()->block.y == 1
run
print row
print/x v[0]
call emuWhere()
delete
finish
print at
next
next
print emu_self()->tid
continue
# end
