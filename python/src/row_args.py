# SPDX-License-Identifier: MIT
"""A build step: the rows of some C files as structs, so that C takes the arguments of a row by their names.

    row_args.py OUTPUT.h DOMAIN.c...

The struct of a row is the frame (glue.h) that call.c fills for it, with names. It needs names and kinds alone;
the module reads the whole text when it is imported (parse.c)."""
import pathlib
import sys

from row_text import read_rows

C_TYPES = {"float": "double "}      # of a scalar; others are int64_t: 0 or 1 of a bool, a word's place in {a|b}


def struct_of(row):
    outputs = [f"*{result.name}" for result in row.results]
    fields = [f"    union {{ struct {{ DLTensor {', '.join(outputs)}; }}; DLTensor *outputs[MAX_RESULTS]; }};"
              if outputs else "    DLTensor *outputs[MAX_RESULTS];"]
    for p in row.params:
        is_tensor = p.kind == "tensor"
        c_type = C_TYPES.get(p.kind, "int64_t ") if not is_tensor else \
            "DLTensor *" if p.is_written else "const DLTensor *"
        has = f" bool has_{p.name};" if p.is_optional and not is_tensor else ""
        fields.append(f"    _Alignas(value) {c_type}{p.name};{has}")
    return "\n".join(["", f"/* {row.text} */", "typedef struct {", "    FRAME_HEAD;", *fields, f"}} {row.name}_args;",
                      f'_Static_assert(sizeof({row.name}_args) == offsetof(frame, arg[{len(row.params)}]), "a frame");',
                      ""])


def main(output, *sources):
    made = "/* Made by row_args.py. */\n"
    made += "".join(struct_of(row) for source in sources for row in read_rows(source))
    made += "\n#define DOMAINS(each) " + " ".join(f"each({pathlib.Path(source).stem})" for source in sources) + "\n"
    pathlib.Path(output).write_text(made, encoding="utf-8")


main(*sys.argv[1:])
