# SPDX-License-Identifier: MIT
"""Docstrings made from those of operators, which python/src/row_help.py writes from the rows. It imports this module too."""
from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])


def _items_of(block):
    """{name: its lines} of the block of a heading."""
    items, lines = {}, block.split("\n")[1:]
    for line in lines:
        if line[4:5] != " ":
            name, colon, words = line.strip().partition(": ")
            items[name] = [words] if colon else []
        else:
            items[name].append(line.strip())
    return {name: words for name, words in items.items() if words}      # "None" is no item


def split(text):
    """(summary, {argument: lines}, {result: lines}, example) of a docstring. inspect.cleandoc() would do the first
    lines, but importing it takes longer than our package."""
    first, *lines = text.strip().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    blocks = "\n".join([first, *(line[margin:] for line in lines)]).split("\n\n")
    parts = {"Args:": "", "Returns:": "", "Example:": ""}
    while blocks and (heading := blocks[-1].partition("\n")[0]) in parts:
        parts[heading] = blocks.pop()
    return "\n\n".join(blocks), _items_of(parts["Args:"]), _items_of(parts["Returns:"]), parts["Example:"]


def _block(heading, items):
    lines = ["\n        ".join([f"    {name}: {words[0]}", *words[1:]]) for name, words in items.items()]
    return "\n".join([heading, *(lines or ["    None"])])


def join(summary, args, returns, example):
    return "\n\n".join(part for part in (summary, _block("Args:", args), _block("Returns:", returns), example) if part)


def completed(text, names, helps):
    """A function's docstring in which arguments, of these names, and results that it does not describe are described as
    those of the same name in `helps`. Results are those of the first of them and those that the text adds."""
    summary, args, returns, example = split(text)
    theirs, made = {}, {}
    for other in reversed(helps):
        _, known, made, _ = split(other)
        theirs.update(known)
    # A flag of the operator says whether an output is wanted, and it is empty if not; here it is None then.
    made = {name: [re.sub(r" \* want_\w+", "", line) for line in lines] for name, lines in made.items()}
    return join(summary, {name: args[name] if name in args else theirs[name] for name in names}, {**made, **returns}, example)


def helped_by(*operators: Any) -> Callable[[Function], Function]:
    """Completes a function's docstring by those of operators."""
    def complete(function):
        if function.__doc__ is not None:        # python -OO
            code = function.__code__
            names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
            function.__doc__ = completed(function.__doc__, names, [op.__doc__ for op in operators])
        return function

    return complete
