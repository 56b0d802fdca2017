# SPDX-License-Identifier: MIT
"""A build step: the rows of some C files as structs, so that C takes the arguments of a row by their names.

    row_args.py OUTPUT.h DOMAIN.c...

The struct of a row is the frame (glue.h) that call.c fills for it, with names. Only names and kinds are read here;
what else the text says is read once, in parse.c, when the module is imported."""
import pathlib
import re
import sys

SPACE = re.compile(r"[\s\\]*")
TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|(\w+)')
MACRO = re.compile(r"^#define (\w+)(?:\(([^)]*)\))?((?:.*\\\n)*.*)$", re.MULTILINE)
PARAM = re.compile(r"(\w+)(?:\[[^]]*\]\??(!?)|: (\{[^}]*\}|\w+)(\??))")
C_TYPES = {"float": "double "}      # of a scalar; others are int64_t: 0 or 1 of a bool, a word's place in {a|b}


def text_of(code, macros, at=0):
    """The string that C makes of the literals and macros from `at` on, and where they end."""
    made = ""
    while token := TOKEN.match(code, SPACE.match(code, at).end()):
        literal, name = token.groups()
        at = token.end()
        if literal is not None:
            made += literal
            continue
        params, body = macros[name]
        known = dict(macros)
        for param in params:                    # each argument is behind `(` or `,`
            argument, at = text_of(code, macros, at + 1)
            known[param] = (), f'"{argument}"'
        at += bool(params)
        made += text_of(body, known)[0]
    return made, at


def struct_of(text):
    name, params, results = re.fullmatch(r"(\w+)\((.*)\) -> (.*)", text).groups()
    outputs = [f"*{name}" for name in re.findall(r"(\w+): ", results)]
    fields = [f"    union {{ struct {{ DLTensor {', '.join(outputs)}; }}; DLTensor *outputs[MAX_RESULTS]; }};"
              if outputs else "    DLTensor *outputs[MAX_RESULTS];"]
    params = PARAM.findall(params)
    for param, is_written, kind, is_optional in params:
        c_type = C_TYPES.get(kind, "int64_t ") if kind else "DLTensor *" if is_written else "const DLTensor *"
        fields.append(f"    _Alignas(value) {c_type}{param};" + (f" bool has_{param};" if is_optional else ""))
    return "\n".join(["", f"/* {text} */", "typedef struct {", "    FRAME_HEAD;", *fields, f"}} {name}_args;",
                      f'_Static_assert(sizeof({name}_args) == offsetof(frame, arg[{len(params)}]), "a frame");', ""])


def main(output, *sources):
    made = "/* Made by row_args.py. */\n"
    domains = [pathlib.Path(source).stem for source in sources]
    for source in sources:
        code = pathlib.Path(source).read_text(encoding="utf-8")
        macros = {name: (params.split(", ") if params else (), body) for name, params, body in MACRO.findall(code)}
        for row in re.finditer(r"\.text =", code):
            made += struct_of(text_of(code, macros, row.end())[0])
    made += "\n#define DOMAINS(each) " + " ".join(f"each({domain})" for domain in domains) + "\n"
    pathlib.Path(output).write_text(made, encoding="utf-8")


main(*sys.argv[1:])
