# SPDX-License-Identifier: MIT
"""Keeps the documents true: every block of code is cut from a file that is built and run, every link between documents
leads somewhere, every file, tgl_ name and TEGULA_ or EMU_ variable that they mention exists, and the page of a domain has
all of its ops.

    python3 check_docs.py SOURCE_FOLDER

A block of code has a line before it that names its origin, and equals what lies there between comment lines:

    <!-- from: examples/transpose.c#call -->            /* doc: call */
    ```c                                                ...
    ...                                                 /* end */
    ```

less the indentation that all lines share; without #name it equals the whole file. Lines that tell clang-format
where to stop are left out. Blocks marked ```text (output, formulas) are exempt.
"""
import pathlib, re, sys, textwrap

root = pathlib.Path(sys.argv[1]).resolve()
passed = failed = 0


def check(where, problem):
    global passed, failed
    if problem:
        failed += 1
        print(f"{where}: {problem}")
    else:
        passed += 1


def snippet(path, name):
    """The text between the lines "doc: name" and "end" of a file, or all of it, or a sentence that says why there is none."""
    if not (root / path).is_file():
        return None, f"{path} is no file"
    lines = [line for line in (root / path).read_text().splitlines() if not line.lstrip().startswith("// clang-format o")]
    if name is None:
        return "\n".join(lines).rstrip("\n"), None
    comment = r"\s*(//|/\*|#|--|<!--)\s*{}\s*(\*/|-->)?\s*"
    starts = [i for i, line in enumerate(lines) if re.fullmatch(comment.format(f"doc: {re.escape(name)}"), line)]
    if len(starts) != 1:
        return None, f"{path} has {len(starts)} lines \"doc: {name}\", want 1"
    for i in range(starts[0] + 1, len(lines)):
        if re.fullmatch(comment.format("end"), lines[i]):
            return textwrap.dedent("\n".join(lines[starts[0] + 1:i])), None
    return None, f"{path}#{name} has no \"end\""


def anchors(path):
    """The anchors of a document's headings, by GitHub's rule."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*?) *$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


FOLDERS = "bench cases cmake docs examples include python scripts src tests tools".split()
sources = [root / "CMakeLists.txt", *(path for folder in FOLDERS for pattern in ("*.c*", "*.h*", "*.py", "*.txt", "run")
                                      for path in (root / folder).glob(f"**/{pattern}"))]
names = {name for path in sources for name in re.findall(r"\b(?:tgl|TGL|TEGULA|EMU)_\w+", path.read_text())}

documents = [*root.glob("*.md"), *(path for folder in FOLDERS for path in (root / folder).glob("**/*.md"))]
for document in sorted(documents):
    name = document.relative_to(root)
    lines = document.read_text().splitlines()
    origin, in_block = None, None
    prose = []
    for number, line in enumerate(lines, 1):
        fence = re.fullmatch(r"\s*```(\w*)\s*", line)
        if in_block is None and fence:
            in_block = (fence[1], number, origin, [])
        elif in_block is not None and fence and not fence[1]:
            language, start, source, body = in_block
            where = f"{name}:{start}"
            if language != "text":
                if source is None:
                    check(where, f"a block of {language or 'no language'} without <!-- from: path#name --> before it")
                else:
                    want, problem = snippet(*source)
                    seen = textwrap.dedent("\n".join(body))
                    check(where, problem or (want != seen and f"differs from {'#'.join(filter(None, source))}, which is\n{textwrap.indent(want, '    ')}"))
            in_block = origin = None
        elif in_block is not None:
            in_block[3].append(line)
        else:
            marker = re.fullmatch(r"\s*<!-- from: ([^\s#]+)(?:#(\S+))? -->\s*", line)
            origin = marker.groups() if marker else origin if not line.strip() else None
            prose.append((number, re.sub(r"`[^`]*`", "", line)))
            for path in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)[`#]", line):
                check(f"{name}:{number}", not (root / path).exists() and f"{path}: no such file")
            for word in re.findall(r"`-?D?((?:tgl|TGL|TEGULA|EMU)_\w+)(?:\(\)|=[^`]*)?`", line):
                check(f"{name}:{number}", word not in names and f"{word}: no such name")
    check(f"{name}: end of file", in_block and f"the block of line {in_block[1]} is not closed")
    for number, line in prose:
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"[a-z]+:", target):
                continue                        # another site's
            path, _, anchor = target.partition("#")
            to = (document.parent / path).resolve() if path else document
            if not to.exists():
                check(f"{name}:{number}", f"link to {target}: no such file")
            elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                check(f"{name}:{number}", f"link to {target}: no such heading")
            else:
                check(f"{name}:{number}", None)

# An op is named in full, so that a search for it finds its page.
for header in sorted((root / "include/tegula").glob("*.h")):
    page = root / "docs" / f"{header.stem}.md"
    for op in re.findall(r"TGL_API tgl_status tgl_(\w+)\(", header.read_text()) if page.exists() else ():
        check(page.relative_to(root), not re.search(rf"\btgl_{op}\b", page.read_text()) and f"lacks tgl_{op}")

# A header promises nothing that is newer than the library.
core = (root / "include/tegula/core.h").read_text()
version = tuple(int(re.search(rf"TGL_VERSION_{part} (\d+)", core)[1]) for part in ("MAJOR", "MINOR"))
for header in sorted((root / "include/tegula").glob("*.h")):
    later = [since for since in re.findall(r"Since (\d+\.\d+)", header.read_text()) if tuple(map(int, since.split("."))) > version]
    check(header.relative_to(root), later and f"\"Since {later[0]}\", but this is {version[0]}.{version[1]}")

print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
