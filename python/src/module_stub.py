# SPDX-License-Identifier: MIT
"""The stub of a module whose functions are written in Python, made from its source (row_help.py): what gives tensors of
the kind that it takes, an AnyTensor there, gets two forms here, as builtins have them."""
import ast
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parent.parent / "tegula"))      # the package itself is not built yet
from _help import completed


class _Kind(ast.NodeTransformer):
    def __init__(self, kind):
        self.kind = kind

    def visit_Name(self, node):
        return ast.copy_location(ast.parse(self.kind, mode="eval").body, node) if node.id == "AnyTensor" else node


def _with(function, argument, result):
    """A form of the function, without its text and decorators."""
    made = ast.parse(ast.unparse(function)).body[0]
    made.args, made.returns = _Kind(argument).visit(made.args), _Kind(result).visit(made.returns)
    made.decorator_list, made.body = [], [ast.Expr(ast.Constant(...))]
    return made


def _docstring_of(function, helps):
    """As _help.helped_by() makes it at run time."""
    call = next((d for d in function.decorator_list if isinstance(d, ast.Call)), None)
    operators = [helps[operator.attr] for operator in call.args] if call else []       # _tegula.mhc_post_bwd
    args = function.args
    return completed(ast.get_docstring(function), [a.arg for a in args.posonlyargs + args.args + args.kwonlyargs], operators)


def _forms(functions, helps):
    """Of all definitions of a name: if some are overloads, the last is not for callers."""
    docstring = _docstring_of(functions[-1], helps)
    functions = functions[:-1] or functions
    made = [_with(f, *kinds) for kinds in (("Tensor", "Tensor"), ("Array", "Any")) for f in functions]
    if ast.unparse(made[0]) == ast.unparse(made[-1]):
        made = made[:1]
    for form in made:
        form.decorator_list = [ast.Name("overload")] * (len(made) > 1)
    made[0].body = [ast.Expr(ast.Constant("\n".join("    " * bool(line and i) + line
                                                    for i, line in enumerate(docstring.split("\n"))) + "\n    "))]
    return made


def _statements(module):
    """Those that type checkers have a use for."""
    for node in module.body:
        if isinstance(node, ast.If):            # TYPE_CHECKING
            yield from node.body
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.ImportFrom) and node.module is None:      # modules beside it
            for name in node.names:
                if not name.name.startswith("_") and node.level == 1:
                    yield ast.ImportFrom(None, [ast.alias(name.name, name.name)], 1)
        elif isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module == "typing"):
            yield node


def stub_of_module(path, helps):
    """`helps`: the docstrings of operators by name."""
    made, functions = [], {}
    for node in _statements(ast.parse(pathlib.Path(path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node)
        else:
            made.append(node)
    for definitions in functions.values():
        made += _forms(definitions, helps)
    head = "# Made from the source beside it.\nfrom typing import Any, overload\n\nfrom torch import Tensor\n\n"
    return head + "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in made) + "\n"
