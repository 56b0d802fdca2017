# SPDX-License-Identifier: MIT
"""bin/tegula: every command on the CPU, its files, its complaints. TEGULA_TOOL names another binary than build/bin/tegula."""
import fcntl
import functools
import html.parser
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
import xml.etree.ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = Path(os.environ.get("TEGULA_TOOL", ROOT / "build/bin/tegula"))
PEERS = ROOT / "bench/peers/tilekernels-1.0.0-h200.jsonl"
COMMANDS = ["info", "list", "check", "bench", "compile", "demo", "report", "completion"]
SMALL = ["transpose", "num_rows=64,128", "num_cols=96", "dtype=bf16,f32"]      # four rows of no size


def run_tool(folder, *words, env=None, timeout=300):
    """Runs the tool in a folder, with a cache there and no settings from outside."""
    assert TOOL.exists(), f"{TOOL} was not built"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TEGULA_")}
    clean["TEGULA_CACHE_DIR"] = str(folder / "cache")
    return subprocess.run([str(TOOL), *map(str, words)], cwd=folder, env={**clean, **(env or {})}, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout)


@pytest.fixture
def tegula(tmp_path):
    return functools.partial(run_tool, tmp_path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    done = run_tool(folder, "bench", *SMALL, "--quick", "--device", "cpu", "--json", "rows.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "rows.jsonl").read_text()


@pytest.fixture
def rows(measured, tmp_path):
    (tmp_path / "rows.jsonl").write_text(measured)
    return read_lines(tmp_path / "rows.jsonl")


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# ---- command lines ----

def test_help_names_every_command(tegula):
    done = tegula("--help")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")] == COMMANDS
    assert tegula("help").stdout == tegula("help", "help").stdout == done.stdout
    assert tegula().returncode == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(tegula, command):
    done = tegula(command, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: tegula {command} ") and not done.stderr
    assert tegula("help", command).stdout == done.stdout


def test_help_fits_80_columns(tegula, tmp_path):
    """In pipes, too; on a narrower terminal the texts of options are wrapped, and nothing is lost."""
    for words in [["--help"], *(["help", command] for command in COMMANDS)]:
        plain = tegula(*words).stdout
        assert max(map(len, plain.splitlines())) <= 80 and not re.search(" $", plain, re.M), plain
        assert on_a_terminal(tmp_path, 200, *words)[0].replace("\r", "") == plain
    narrow = on_a_terminal(tmp_path, 60, "help", "compile")[0].replace("\r", "")
    notes, options = narrow.split("\nexample\n")[0].split("\n\n", 1)[1], narrow.split("\noptions\n")[1]
    assert max(map(len, (notes + options).splitlines())) <= 60 and narrow.split() == tegula("help", "compile").stdout.split()


def options_of(tegula, command):
    return re.findall(r"^  (--[\w-]+)", tegula(command, "--help").stdout, re.M)


def test_manual_page_has_what_the_help_has(tegula, tmp_path):
    page = tegula("help", "man").stdout
    sections = page.replace("\\-", "-").split(".SS ")
    assert [section.split()[1] for section in sections[1:]] == COMMANDS
    for command, section in zip(COMMANDS, sections[1:]):
        assert re.findall(r"^\.B (--[\w-]+)", section, re.M) == options_of(tegula, command)
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-Tascii", "-ww"], input=page, text=True, capture_output=True)
        assert done.returncode == 0 and not done.stderr
        assert "tegula bench" in re.sub(".\b", "", done.stdout)            # bold letters are struck twice


def note_of(tegula, command):
    return " ".join(tegula(command, "--help").stdout.split("\n\n")[1].split())


def models_of(tegula):
    """As the help names them."""
    return re.search(r"a model: ((?:[\w.-]+,\s+)*[\w.-]+)", tegula("compile", "--help").stdout)[1].replace(",", "").split()


def test_help_says_what_parameters_are(tegula):
    said = [note_of(tegula, command) for command in ("check", "bench", "compile")]
    assert len(set(said)) == 1 and "k=a,b stands for several values" in said[0] and "without a default" in said[0]
    said = note_of(tegula, "list")
    heads, row = (line.split() for line in tegula("list", "moe_topk_gate").stdout.splitlines()[:2])
    assert all(head in said for head in heads[1:5])
    assert row[5] == "num_tokens=" and "num_tokens= has no default" in said and "dtype=i64" in row and "dtype=i64 has one" in said


def example_of(tegula, command):
    return (re.findall(r"\nexample\n  (.*)\n", tegula(command, "--help").stdout) or [None])[0]


def test_sections_of_the_manual_page(tegula, tmp_path):
    page = tegula("help", "man").stdout.replace("\\-", "-")
    sections = dict(re.findall(r"^\.SH (.*)\n((?:(?!\.SH).*\n)*)", page, re.M))
    assert sections["PARAMETERS"] == note_of(tegula, "check") + "\n" and page.count("k=a,b") == 1
    settings = tegula("info").stdout.split("\n\n")[1].splitlines()[1:]
    shown = re.findall(r"^\.TP\n\.B (\S+)\n(.*)", sections["ENVIRONMENT"], re.M)
    assert shown == [(line.split()[0], re.split("  +", line)[3]) for line in settings] and len(shown) >= 10
    for home, folder in ({"XDG_CACHE_HOME": ""}, "~/.cache/tegula"), ({"XDG_CACHE_HOME": str(tmp_path / "xdg")}, "$XDG_CACHE_HOME/tegula"):
        env = {**os.environ, **home, "HOME": str(tmp_path)}
        env.pop("TEGULA_CACHE_DIR", None)
        info = subprocess.run([TOOL, "info"], env=env, text=True, capture_output=True).stdout
        expanded = folder.replace("~", str(tmp_path)).replace("$XDG_CACHE_HOME", home["XDG_CACHE_HOME"])
        assert folder in sections["FILES"] and re.search(f"^cache +(none: )?{expanded}\\b", info, re.M)
    examples = re.findall(r"\.EX\n(.*)\n\.EE", sections["EXAMPLES"])
    assert examples == [example for command in COMMANDS if (example := example_of(tegula, command))] and len(examples) >= 6


def test_examples_run(tegula, tmp_path):
    """Those of list to completion, in this order: report reads what bench wrote."""
    for command in "list", "check", "bench", "report", "completion":
        example = example_of(tegula, command)
        env = {**os.environ, "PATH": f"{TOOL.parent}:{os.environ['PATH']}", "TEGULA_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(["bash", "-c", example], cwd=tmp_path, env=env, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
    model = re.search(r"--model (\S+)", example_of(tegula, "compile"))[1]
    assert model in models_of(tegula)


COMPLETIONS = [
    ("tegula ", [*COMMANDS, "help"]), ("tegula be", ["bench"]), ("tegula help comp", ["compile", "completion"]),
    ("tegula bench --j", ["--json"]), ("tegula check moe_topk_g", ["moe_topk_gate"]), ("tegula info moe", [])]


@pytest.mark.parametrize("line, words", COMPLETIONS)
def test_completion(tegula, line, words):
    script = tegula("completion", "bash").stdout
    given = line.split(" ")
    ask = f'COMP_WORDS=({" ".join(map(repr, given))}); COMP_CWORD={len(given) - 1}; _tegula; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], text=True, capture_output=True)
    assert sorted(done.stdout.split()) == sorted(words), done.stderr


def test_completion_for_zsh_has_what_that_for_bash_has(tegula):
    """And loads in both ways: by its first line from a folder of functions, and read by a shell."""
    script = tegula("completion", "zsh").stdout
    assert script.startswith("#compdef tegula\n") and script.endswith("_tegula \"$@\"; else compdef _tegula tegula; fi\n")
    branches = [re.findall(r"^    \*?.*\) known='.*' ;;$", text, re.M) for text in (script, tegula("completion", "bash").stdout)]
    assert branches[0] == branches[1] and len(branches[0]) == len(COMMANDS) + 2


def test_completion_in_zsh(tegula):
    if not shutil.which("zsh"):
        pytest.skip("no zsh here")
    begin = "compdef() { }\n_files() { }\ncompadd() { shift; print -l -- ${(M)@:#$words[CURRENT]*} }\n"
    for line, words in COMPLETIONS:
        given = line.split(" ")
        ask = f"words=({' '.join(map(repr, given))}); CURRENT={len(given)}; _tegula"
        done = subprocess.run(["zsh", "-fc", f"{begin}{tegula('completion', 'zsh').stdout}\n{ask}"], text=True, capture_output=True)
        assert sorted(done.stdout.split()) == sorted(words), done.stderr


@pytest.mark.parametrize("words, sentence", [
    (["nonsense"], "tegula: nonsense: no such command"),
    (["info", "--nonsense"], "tegula info: --nonsense: no such option"),
    (["info", "more"], "tegula info: more: not understood"),
    (["info", "--prune"], "tegula info: --prune: wants SIZE"),
    (["info", "--prune", "7Q"], "tegula info: --prune: is 7Q, want a size such as 500K, 64M or 0"),
    (["info", "--prune", "-1"], "tegula info: --prune: is -1, want a size such as 500K, 64M or 0"),
    (["list", "nonsense"], "tegula list: nonsense: no such op or domain; tegula list names them"),
    (["list", "topk_gate"], "tegula list: topk_gate: no such op or domain; did you mean moe_topk_gate?"),
    (["bench", "unpack"], "tegula bench: unpack: no such op or domain; did you mean quant_unpack_from_e2m1fn_x2?"),
    (["help", "nonsense"], "tegula: nonsense: no such command"),
    (["completion", "tcsh"], "tegula completion: tcsh: not understood"),
    (["report"], "tegula report: wants files of JSON lines"),
    (["report", "nowhere.jsonl"], "tegula report: --output: wants PAGE"),
    (["report", "nowhere.jsonl", "-o", "page.html"], "tegula report: nowhere.jsonl: No such file or directory"),
    (["completion"], "tegula completion: wants a shell: bash or zsh"),
    (["check", "--slow=1"], "tegula check: --slow: takes no value"),
    (["check", "--device", "gpu"], "tegula check: --device: is gpu, want cpu, cuda or cuda:<number>"),
    (["check", "transpose", "color=red"], "tegula check: transpose: has no parameter color; it has: "),
    (["check", "transpose", "num_rows=999999999"],
     "tegula check: no listed case of transpose has num_rows=999999999; to make one, give num_cols= dtype=, too\n"),
    (["check", "transpose", "num_rows=7", "num_cols=9"],
     "tegula check: no listed case of transpose has num_rows=7 num_cols=9; to make one, give dtype=, too\n"),
    (["check", "transpose", "batched_transpose", "num_rows=7"],
     "tegula check: no listed case has num_rows=7; to make one, name one op and all of its parameters without a default\n"),
    (["check", "color=red"], "tegula check: no op has these parameters: color=red\n"),
    (["check", "moe_topk_gate", "dtype=bogus"], 'tegula check: moe_topk_gate: dtype: is "bogus", want a dtype such as '),
    (["check", "transpose", "num_cols=9", "num_rows=7,x"], 'tegula check: transpose: num_rows: is "x", want a whole number\n'),
    (["check", "transpose", "num_rows=64", "layout=packed,odd", "num_cols=7"], 'tegula check: transpose: layout: is "odd", want packed, '),
    (["check", "transpose", "dtype="], 'tegula check: transpose: dtype: is "", want a value of 1 to 31 characters\n'),
    (["check", "color=red", "dtype=bogus"], "tegula check: no op has these parameters: color=red dtype=bogus\n"),
    (["check", "dtype=bogus"], "tegula check: engram_fused_weight: dtype: is \"bogus\", want a dtype such as "),
    (["check", "--random", "-1"], "tegula check: --random: is -1, want a whole number >= 0"),
    (["check", "--random", "5", "--seed", "x"], "tegula check: --seed: is x, want a whole number >= 0"),
    (["check", "--random", "5", "--elements", "9"], "tegula check: --elements: is 9, want a size such as 4K or 1M, at least 64"),
    (["check", "--random", "5", "dtype=bf16"], "tegula check: --random: draws all parameters, so takes neither k=v nor --slow"),
    (["bench", "--flush", "drain"], "tegula bench: --flush: is drain, want read or write"),
    (["bench", "--against", "nowhere.jsonl"], "tegula bench: --against: nowhere.jsonl: No such file or directory"),
    (["bench", "--from", "nowhere.jsonl"], "tegula bench: --from: nowhere.jsonl: No such file or directory"),
    (["bench", "--from", "a", "--json", "b"], "tegula bench: --from: measures nothing, "),
    (["bench", "--first-call", "--json", "b"], "tegula bench: --first-call: makes no rows, "),
    (["bench", "--dry-run", "--html", "b"], "tegula bench: --dry-run: makes no rows, "),
    (["compile"], "tegula compile: --arch: wants architectures, such as sm_90a,sm_100a"),
    (["compile", "--arch", "sm_90a", "--model", "gpt-1"], "tegula compile: --model: is gpt-1, want one of "),
    (["compile", "--arch", "sm_90a", "--model", "deepseek-v3", "transpose"], "tegula compile: --model: names the ops itself"),
    (["compile", "--all", "transpose"], "tegula compile: --all: names the ops itself"),
    (["compile", "--all", "--model", "deepseek-v3"], "tegula compile: --all: has all models, so takes no --model"),
    (["compile", "--arch", "pentium"], "tegula compile: --arch: "),
    (["compile", "--arch", "sm_90a", "transpose", "num_rows=64,x", "num_cols=64", "dtype=bf16"],
     'tegula compile: transpose num_rows=x num_cols=64 dtype=bf16: num_rows: is "x", want a whole number\n'),
    (["demo", "--device", "tpu"], "tegula demo: --device: is tpu, want cpu, cuda or cuda:<number>"),
])
def test_a_bad_command_line_gets_a_sentence(tegula, words, sentence):
    done = tegula(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(sentence)
    assert re.search(r"\nSee: tegula( \w+)? --help\n$", done.stderr)
    assert not done.stdout


# ---- info, list, check, compile, demo ----

def test_info(tegula, tmp_path):
    done = tegula("info", env={"TEGULA_NUM_THREADS": "1"})
    assert done.returncode == 0 and not done.stderr
    facts = dict(re.findall(r"^(\w[\w:]*) +(.+)$", done.stdout.split("\n\n")[0], re.M))
    header = (ROOT / "include/tegula/core.h").read_text()
    version = ".".join(re.findall(r"#define TGL_VERSION_\w+ (\d+)", header))
    assert facts["tegula"].split(",")[0] == version
    assert ", 1 thread," in facts["cpu"]
    assert {"driver", "nvrtc", "cupti"} <= facts.keys()
    assert facts["cache"] == f"{tmp_path}/cache, 0 files, 0 B"
    settings = [re.split(r"  +", line) for line in done.stdout.split("\n\n")[1].splitlines()]
    assert ["TEGULA_NUM_THREADS", "1", "environment"] in [row[:3] for row in settings]
    assert ["TEGULA_JIT", "auto", "default"] in [row[:3] for row in settings]


def test_info_says_why_there_is_no_cache(tegula, tmp_path):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for folder, reason in ("", "."), (open_to_all, "others may write to it"):
        done = tegula("info", env={"TEGULA_CACHE_DIR": str(folder)})
        assert done.returncode == 0 and re.search(rf"^cache +none: .*{reason}", done.stdout, re.M), done.stdout


def test_info_names_the_readonly_cache(tegula, tmp_path):
    assert "read-only" not in tegula("info").stdout.split("\n\n")[0]
    baked = tmp_path / "baked"
    for prepare, line in ((lambda: None, f"none: {baked} is refused: No such file or directory"),
                          (baked.mkdir, f"{baked}, 0 files, 0 B"),
                          (lambda: baked.chmod(0o777), f"none: {baked} is refused: others may write to it (mode 777)")):
        prepare()
        done = tegula("info", env={"TEGULA_CACHE_READONLY": str(baked)})
        assert done.returncode == 0 and re.search(rf"^read-only +{re.escape(line)}$", done.stdout, re.M), done.stdout


def test_list(tegula):
    done = tegula("list")
    assert done.returncode == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "num_rows= num_cols= dtype=" in lines["transpose"]
    assert all(int(n) > 0 for n in lines["transpose"].split()[1:5])
    assert tegula("list", "transpose").stdout.splitlines()[1].split() == lines["transpose"].split()
    ops = [line.split()[0] for line in tegula("list", "moe").stdout.splitlines()[1:]]
    assert ops == [op for op in lines if op.startswith("moe_")] and len(ops) > 10


def parameters_of(tegula, op):
    """What `tegula list <op>` says that they may be; where the columns begin."""
    table = tegula("list", op).stdout.split("\n\n")[1].splitlines()
    default, values = table[0].index("default"), table[0].index("values")
    return {row[:default].strip(): (row[default:values].strip(), row[values:]) for row in table[1:]}


def test_list_of_an_op_says_what_its_parameters_may_be(tegula):
    lookup = parameters_of(tegula, "engram_lookup")
    assert lookup["num_tokens"] == ("", "a whole number") and lookup["at"] == ("device", "device, host, huge")
    assert lookup["dtype"] == ("e4m3", "e4m3, bf16, f16, f32")          # those of the lists
    assert "want one of: device host huge\n" in tegula("check", "engram_lookup", "at=?", "--device", "cpu").stderr
    lines = [line.split() for line in tegula("list").stdout.splitlines()[1:]]
    for op, parameters in ((line[0], line[5:]) for line in lines):
        shown = parameters_of(tegula, op)
        assert [f"{name}={default}" for name, (default, _) in shown.items()] == parameters
        for name, (default, values) in shown.items():
            is_word = default and values and not re.match(r"a (whole )?number|\d+\.\.\d", values)
            assert not is_word or default in re.split(", | or ", values), (op, name)


def on_a_terminal(folder, width, *words, stream="stdout", env=None):
    """What the tool writes to a terminal as wide; the exit status."""
    screen, ours = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    settings = {**os.environ, "NO_COLOR": "1", "TEGULA_CACHE_DIR": str(folder / "cache"), **(env or {})}
    with subprocess.Popen([TOOL, *map(str, words)], cwd=folder, env=settings, **{stream: ours, other: subprocess.DEVNULL}) as run:
        os.close(ours)
        text = b""
        try:
            while part := os.read(screen, 1 << 16):
                text += part
        except OSError:                         # the other side is closed
            pass
    os.close(screen)
    return text.decode(), run.returncode


@pytest.mark.parametrize("width", [80, 100, 400])
@pytest.mark.parametrize("words", [["list", "moe"], ["list", "quant"], ["list", "engram"], ["list", "moe_route"], ["info"]], ids=" ".join)
def test_tables_fit_the_terminal(tmp_path, width, words):
    """Cells are wrapped, and so are facts, below where they begin; nothing is lost."""
    text = on_a_terminal(tmp_path, width, *words)[0].replace("\r", "")
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and not any(line != line.rstrip() for line in lines)
    plain = run_tool(tmp_path, *words).stdout
    assert sorted("".join(text.split())) == sorted("".join(plain.split()))
    assert width < 400 or text.split() == plain.split()


def test_rows_of_a_bench_fit_the_terminal(tmp_path, rows):
    label = ["moe_top2_sum_gate", "num_tokens=4", "num_experts=64", "num_topk=6", "num_groups=8", "num_topk_groups=4", "scoring=softmax"]
    for width in 80, 200:
        text = on_a_terminal(tmp_path, width, "bench", *label, "--quick", "--no-check", "--device", "cpu")[0]
        table = text.split("cold us")[1].splitlines()[1:]
        assert max(map(len, table)) <= width and " ".join(label[1:]) in " ".join(text.split())
        assert re.search(r"scoring=softmax" + (r"\s*\n" if width == 80 else "") + r" +[\d.]+ +\d+ % +[\d.]+ +[\d.]+ +\d+ %", text)
    against = on_a_terminal(tmp_path, 80, "bench", "--from", "rows.jsonl", "--against", "rows.jsonl")[0]
    table = against.split("against ")[1].split("rows compared")[0].splitlines()[1:-1]
    assert len(table) >= 5 and max(map(len, table)) <= 80


def test_long_work_says_how_long(tmp_path):
    begin = time.monotonic()
    text, code = on_a_terminal(tmp_path, 80, "check", "moe_topk_gate", "moe_route", "quant_per_token_cast", "--random", "700",
                               "--device", "cpu", stream="stderr")
    is_long = time.monotonic() - begin > 3              # it is told from 2 s on
    parts = re.findall(r"\[(\d+)/(\d+)(?:, (\d+) (s|min) left)?\]", text)
    assert code == 0 and {total for _, total, _, _ in parts} == {"2100"} and not parts[0][2]
    left = [int(n) * (60 if unit == "min" else 1) for _, _, n, unit in parts if n]
    assert left[-1] <= 2 if left else not is_long
    text, code = on_a_terminal(tmp_path, 80, "check", "transpose", "--device", "cpu", stream="stderr")
    listed = run_tool(tmp_path, "list", "transpose").stdout.splitlines()[1].split()[1]
    assert code == 0 and f"[0/{listed}]" in text and re.search(rf"\[{int(listed) - 1}/{listed}[,\]]", text)


def test_check(tegula):
    done = tegula("check", "transpose", "num_rows=1,37", "num_cols=31", "dtype=e4m3,i64", "--device", "cpu")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[1].split()[:4] == ["transpose", "cpu", "4", "0"]


def test_check_picks_listed_cases(tegula):
    """Without an op's name: of every op that has such cases, and no others."""
    *few, end = tegula("check", "dtype=c128", "--device", "cpu").stdout.splitlines()[1:]
    ops = ["moe_expand_to_fused", "moe_expand_to_fused_with_sf", "batched_transpose", "transpose"]      # as listed
    all_of_them = tegula("check", *ops, "--device", "cpu").stdout.splitlines()[1:-1]
    assert [line.split()[0] for line in few] == [line.split()[0] for line in all_of_them]
    assert all(0 < int(a.split()[2]) < int(b.split()[2]) for a, b in zip(few, all_of_them))
    assert end == f"{sum(int(line.split()[2]) for line in few)} passed, 0 failed, 0 skipped"


@pytest.mark.parametrize("words, sentence", [
    (["num_topk=3", "fix=some"], "unmapped_topk_idx: is NULL, want a tensor with fix_routing_mask"),
    (["num_topk=20"], "topk_idx: shape is [4, 20], want [4, 0..16]"),
    (["num_topk=2", "num_groups=32", "num_topk_groups=0"], "num_topk_groups: is 0, want 1..32"),
    (["num_topk=2", "num_groups=0", "num_topk_groups=3"], "num_topk_groups: is 3, want 0..0"),
    (["num_topk=8", "num_groups=4", "num_topk_groups=1"], "topk_idx: shape is [4, 8], want [4, 0..4]"),
])
def test_check_of_what_the_op_refuses(tegula, words, sentence):
    for op in ("moe_top2_sum_gate", "moe_route"):
        done = tegula("check", op, "num_tokens=4", "num_experts=16", *words, "--device", "cpu", timeout=20)
        assert done.returncode == 1 and f"TGL_ERR_ARGUMENT: {sentence}" in done.stdout + done.stderr


def test_check_of_a_negative_offset(tegula):
    done = tegula("check", "transpose", "num_rows=3", "num_cols=5", "dtype=bf16", "offset=-3000", "--device", "cpu")
    assert done.returncode == 1 and "x: offset is -3000, want >= 0" in done.stdout


def test_check_slow_adds_the_slow_list(tegula):
    """A case that only the slow list has is found with --slow alone; one that is spelled out runs once."""
    words = ["check", "transpose", "num_rows=0", "num_cols=576", "--device", "cpu"]
    assert tegula(*words).returncode == 2
    slow = tegula(*words, "--slow")
    assert slow.returncode == 0 and int(slow.stdout.splitlines()[1].split()[2]) > 0, slow.stdout + slow.stderr
    named = tegula("check", "transpose", "num_rows=2", "num_cols=3", "dtype=u8", "--slow", "--device", "cpu")
    assert named.stdout.splitlines()[1].split()[2] == "1"


def test_check_random(tegula):
    """As many cases as asked for; the same seed draws the same ones."""
    def rows(*words):
        done = tegula("check", "moe_topk_gate", "transpose", "--random", "30", *words, "--device", "cpu")
        assert done.returncode == 0, done.stdout + done.stderr
        *table, end = done.stdout.splitlines()[1:]
        assert end == "60 passed, 0 failed, 0 skipped"
        return [re.split(r"  +", line) for line in table]
    first = rows()
    assert [row[:4] for row in first] == [["moe_topk_gate", "cpu", "30", "0"], ["transpose", "cpu", "30", "0"]]
    assert [row[5] for row in first] == [row[5] for row in rows("--seed", "1")]
    assert first[0][5] != rows("--seed", "2")[0][5]
    assert re.fullmatch(r"\d+ refused, \d+ undecided, 0 of other kernels, 0 without memory", first[0][5])


def test_check_scrub(tegula):
    done = tegula("check", "quant_per_block_cast", "--scrub", "--device", "cpu")
    assert done.returncode == 0 and int(done.stdout.splitlines()[1].split()[2]) > 100, done.stdout + done.stderr


def test_check_names_the_case_that_crashed():
    words = ["transpose", "num_rows=8064", "num_cols=7168", "dtype=bf16", "--device", "cpu"]
    with subprocess.Popen([str(TOOL), "check", *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(0.3)
        process.send_signal(signal.SIGSEGV)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == -signal.SIGSEGV and errors == f"\ncrashed in: tegula check {' '.join(words)}\n"


def test_compile_fills_a_cache_once(tegula, tmp_path):
    if not re.search(r"^nvrtc +\d+\.\d+", tegula("info").stdout, re.M):
        pytest.skip("no NVRTC here")
    words = ["compile", "--arch", "sm_90a", "transpose", "num_rows=64", "num_cols=64", "dtype=bf16", "-o", "baked"]
    first, second = tegula(*words), tegula(*words)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    counts = [re.findall(r"(\d+) kernels? compiled in (\d+) ms; baked: (\d+) files \((\d+) new\), ", done.stdout)
              for done in (first, second)]
    compiled, ms, files, new = map(int, counts[0][0])
    assert compiled == files == new == len(list((tmp_path / "baked").iterdir())) > 0 and ms > 0
    assert re.search(r"^transpose/\w+ +sm_90a +\d+\.\d ", first.stdout, re.M)
    assert counts[1] == [("0", "0", str(files), "0")]
    pruned = tegula("info", "--prune", "0", env={"TEGULA_CACHE_DIR": str(tmp_path / "baked")})
    assert pruned.stdout.startswith(f"pruned {files} files, ") and not list((tmp_path / "baked").glob("*.tgl"))


COMPILE = ["compile", "--arch", "sm_90a", "transpose", "num_rows=64", "num_cols=64", "dtype=bf16"]


def test_compile_fails_where_the_cache_is_incomplete(tegula, tmp_path, emulated):
    assert tegula(*COMPILE, "-o", "whole", env=emulated).returncode == 0
    names = sorted(file.name for file in (tmp_path / "whole").iterdir())
    for name in names[:2]:
        (tmp_path / "partial" / name).mkdir(parents=True)       # no file can be renamed to it
    (tmp_path / "partial").chmod(0o755)
    done = tegula(*COMPILE, "-o", "partial", env=emulated)
    assert done.returncode == 1
    assert re.fullmatch(r"tegula compile: 2 kernels could not be stored, the cache is incomplete: "
                        rf"partial/({names[0]}|{names[1]}): Is a directory\n", done.stderr), done.stderr
    assert sorted(file.name for file in (tmp_path / "partial").iterdir() if file.is_file()) == names[2:]


def test_compile_fills_its_folder_whatever_the_readonly_one_has(tegula, tmp_path, emulated):
    assert tegula(*COMPILE, "-o", "first", env=emulated).returncode == 0
    done = tegula(*COMPILE, "-o", "second", env={**emulated, "TEGULA_CACHE_READONLY": str(tmp_path / "first")})
    assert done.returncode == 0, done.stderr
    assert {f.name for f in (tmp_path / "first").iterdir()} == {f.name for f in (tmp_path / "second").iterdir()}


def test_compile_of_a_model(tegula):
    if not re.search(r"^nvrtc +\d+\.\d+", tegula("info").stdout, re.M):
        pytest.skip("no NVRTC here")
    # tests/run keeps compiled kernels between runs, by content. Not beside those that were checked for spills: these are not.
    kept = os.environ.get("TEGULA_CACHE_DIR")
    model = "deepseek-v4-flash" if os.environ.get("TEGULA_TEST_SLOW") else "deepseek-v3"    # 142 kernels, or 74
    words = ["compile", "--arch", "sm_90a", "--model", model, "-o", Path(kept) / "models" if kept else "baked"]
    for summary in (r"^\d+ kernels? compiled", "^0 kernels compiled"):      # all are there the second time
        done = tegula(*words)
        assert done.returncode == 0 and re.search(summary, done.stdout, re.M), done.stdout + done.stderr


def test_compile_all(tegula, tmp_path):
    """The kernels of every model, once each. A libnvrtc that compiles nothing makes it quick."""
    nvrtc = TOOL.parent.parent / "lib/librecording_nvrtc.so"
    if not nvrtc.exists():
        pytest.skip("the libnvrtc of tests was not built")
    env = {"TEGULA_LIBNVRTC": str(nvrtc), "TEGULA_TEST_NVRTC": "12.8"}
    models = models_of(tegula)
    assert models == re.findall(r'^    \{ "(\S+)"', (ROOT / "cases/models.c").read_text(), re.M)
    one_by_one = set()
    for model in models:
        done = tegula("compile", "--arch", "sm_90a", "--model", model, "-o", model, env=env)
        assert done.returncode == 0, done.stderr
        one_by_one |= {file.name for file in (tmp_path / model).iterdir()}
    done = tegula("compile", "--all", "--arch", "sm_90a", "-o", "all", env=env)
    assert done.returncode == 0, done.stderr
    assert {file.name for file in (tmp_path / "all").iterdir()} == one_by_one and len(one_by_one) > 50
    for norm in "none", "bf16":             # as TileKernels' mhc_pre_big_fuse calls it, and with the norm that follows
        done = tegula("compile", "--arch", "sm_90a", "mhc_pre_fwd", "num_tokens=128", "hidden=7168", f"norm={norm}", "-o", "all", env=env)
        assert re.search("^0 kernels compiled", done.stdout, re.M), done.stdout


def test_compile_names_the_architectures_that_nvrtc_knows(tegula):
    if not re.search(r"^nvrtc +\d+\.\d+", tegula("info").stdout, re.M):
        pytest.skip("no NVRTC here")
    for name, before in ("sm_99", '--arch: architecture: is "sm_99", want one that '), ("sm_99a", " does not know this architecture ("):
        done = tegula("compile", "--arch", name, *COMPILE[3:], "-o", "baked")
        known = re.search(re.escape(before) + r"NVRTC \d+\.\d+ knows: ((?:sm_\w+, )*sm_\w+)", done.stderr)[1].split(", ")
        assert done.returncode in (1, 2) and {"sm_80", "sm_90a"} <= set(known) and not {"sm_75", "sm_90"} & set(known)


def test_compile_looks_at_all_architectures_first(tegula, tmp_path, emulated):
    """Nothing is compiled for those before one that is refused."""
    done = tegula(*COMPILE[:2], "sm_90a,sm_100", *COMPILE[3:], "-o", "baked", env=emulated)
    assert done.returncode == 2 and not done.stdout and not (tmp_path / "baked").exists()
    assert done.stderr.startswith('tegula compile: --arch: architecture: is "sm_100", want sm_100a\n')


def test_compile_counts_the_cases_of_all_architectures(tmp_path, emulated):
    words = [*COMPILE[:2], "sm_80,sm_90a", *COMPILE[3:], "-o", "baked"]
    text, code = on_a_terminal(tmp_path, 80, *words, stream="stderr", env=emulated)
    assert code == 0 and re.findall(r"\[(\d+/\d+)[],]", text) == ["0/2", "1/2"]


def test_demo(tegula):
    done = tegula("demo", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    readme = (ROOT / "README.md").read_text()
    routing = re.search(r"^token +logits.*?^token[ .\d|]+$", readme, re.M | re.S)[0]
    assert routing in textwrap.dedent(done.stdout.split("\n\n", 2)[2].split("\n\n  2 ")[0])
    for stage in ("route", "per_token_cast", "expand_to_fused_with_sf", "cast_back", "swiglu_forward_and_per_token_cast",
                  "reduce_fused", "mhc_expand_fwd", "engram_gate_fwd", "mhc_pre_fwd", "mhc_post_fwd"):
        assert re.search(rf"^ +{stage} .* [\d.]+ (us|ms|s) .* \d+ %$", done.stdout, re.M), stage
    assert "Every token agrees with a loop in double" in done.stdout
    comb = [[float(w) for w in row.split()[:4]] for row in re.findall(r"((?: +0\.\d{3}){4})    sum", done.stdout)]
    sums = [sum(row) for row in comb] + [sum(column) for column in zip(*comb)]
    assert len(comb) == 4 and max(abs(s - 1) for s in sums) < 0.005


# ---- the emulated device ----

@pytest.fixture
def emulated():
    """Settings that put the emulated device in the GPU's place."""
    cuda, nvrtc = (TOOL.parent.parent / "lib" / name for name in ("libcuda_emulated.so", "libnvrtc_emulated.so"))
    if not cuda.exists():
        pytest.skip("the emulated device was not built")
    return {"TEGULA_LIBCUDA": str(cuda), "TEGULA_LIBNVRTC": str(nvrtc)}


def test_the_emulated_device_is_named_and_never_timed(tegula, emulated):
    assert re.search(r"^cuda:0 +emulated device \(for tests, not a GPU\): ", tegula("info", env=emulated).stdout, re.M)
    refused = tegula("bench", *SMALL, "--device", "cuda", env=emulated)
    assert refused.returncode == 1 and not refused.stdout
    assert refused.stderr == "tegula bench: cuda:0: is the emulated device, which has no time worth measuring\n"
    chosen = tegula("bench", *SMALL, "--quick", "--json", "rows.jsonl", env=emulated)
    assert chosen.returncode == 0 and "times: clock" in chosen.stdout      # the CPU, where nothing else is asked for


def test_a_pack_needs_no_compiler(tegula, emulated):
    """What compile stored in a folder is all that a call needs, with NVRTC hidden and compiling forbidden."""
    words = ["quant_per_token_cast", "num_rows=8", "num_cols=512"]
    done = tegula("compile", *words, "--arch", "sm_90a", "-o", "pack", env={**emulated, "EMU_NVRTC": "0"})
    assert done.returncode == 0, done.stderr

    def first_call(*words, **settings):
        done = tegula("bench", *words, "--first-call", "--device", "cuda", env={**emulated, "EMU_SMS": "4", **settings})
        return done.returncode, done.stderr, re.findall(r"^quant_per_token_cast +[\d.]+ +[\d.]+ +(\d+) ", done.stdout, re.M)

    packed = {"TEGULA_CACHE_DIR": "", "TEGULA_CACHE_READONLY": "pack", "TEGULA_JIT": "never", "TEGULA_LIBNVRTC": "/nowhere"}
    assert first_call(*words, **packed) == (0, "", ["0"])
    assert first_call(*words, TEGULA_CACHE_DIR="") == (0, "", ["3"])
    code, message, _ = first_call(*words, "num_per_channels=64", **packed)
    assert code == 1 and "quant/per_token_cast (" in message and "TEGULA_JIT=never forbids compiling it" in message


def test_check_random_on_the_emulated_device(tegula, emulated):
    """Only one kernel may be compiled; cases that need others are counted."""
    done = tegula("check", "transpose", "--random", "10", "--compiles", "1", "--scrub", "--device", "cuda", env=emulated)
    assert done.returncode == 0, done.stdout + done.stderr
    row = re.split(r"  +", done.stdout.splitlines()[1])
    assert row[:4] == ["transpose", "cuda:0 (emulated device)", "10", "0"] and not row[5].endswith(" 0 of other kernels")


def test_check_on_the_emulated_device(tegula, emulated):
    done = tegula("check", "transpose", "num_rows=65", "num_cols=66", "dtype=bf16", env=emulated)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [re.split(r"  +", line)[:4] for line in done.stdout.splitlines()[1:]]
    assert rows == [["transpose", "cpu", "1", "0"], ["transpose", "cuda:0 (emulated device)", "1", "0"],
                    ["2 passed, 0 failed, 0 skipped"]]


# ---- rows ----

def test_json_lines(rows):
    assert [r["row"] for r in rows] == ["copy num_rows=4096 num_cols=4096 dtype=bf16"] + [
        f"transpose num_rows={m} num_cols=96 dtype={d}" for m in (64, 128) for d in ("bf16", "f32")]
    for r in rows:
        assert r["backend"] == "cpu" and r["timer"] == "clock" and r["flush"] == "write" and r["library"]
        assert 0 < r["cold_min_us"] <= r["cold_us"] <= r["cold_p90_us"] and r["cold_spread"] >= 0 and r["calls"] >= 3
        assert r["gb_per_s"] == pytest.approx(1e-3 * r["bytes"] / r["cold_us"], rel=0.01, abs=1e-3)
        assert r["copy_share"] == pytest.approx(r["copy_us"] / r["cold_us"], rel=0.01, abs=1e-3)
        assert r["graph_us"] is None and r["host_ns"] is None and r["empty_us"] is None
    assert [r["bytes"] for r in rows[1:]] == [2 * m * 96 * size for m in (64, 128) for size in (2, 4)]
    assert all(r["checked"] == 1 and r["warm_us"] > 0 for r in rows[1:])


def test_bench_without_checking_says_so(tegula, tmp_path):
    done = tegula("bench", *SMALL, "--quick", "--no-check", "--device", "cpu", "--json", "rows.jsonl", "--commit", "abc")
    assert done.returncode == 0
    assert [(r["checked"], r["commit"]) for r in read_lines(tmp_path / "rows.jsonl")[1:]] == [(0, "abc")] * 4


def test_every_field_is_documented(rows):
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs/benchmarking.md").read_text()))
    optional = {"architecture", "driver", "nvrtc", "commit", "peer"}
    assert set(rows[0]) | optional <= documented


# ---- the page ----

class Page(html.parser.HTMLParser):
    """Checks that elements nest, and keeps what a reader of the page sees."""
    def __init__(self, text):
        super().__init__()
        self.stack, self.elements, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        self.stack.append(tag)
        self.elements.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack and self.stack.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_page(tegula, tmp_path, rows):
    rows[0]["timer"] = "an <hour>glass"
    rows[1]["params"] = "a<b & \"c\""
    rows[2].update(copy_us=None, copy_share=None)
    write_lines(tmp_path / "odd.jsonl", rows)
    write_lines(tmp_path / "others.jsonl", [{**rows[1], "cold_us": None}, {**rows[2], "cold_us": 1e-3}, rows[3]])
    assert tegula("bench", "--from", "odd.jsonl", "--against", "others.jsonl", "--html", "page.html").returncode == 1
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    tags = {tag for tag, _ in page.elements}
    assert "svg" in tags and not tags & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"https?:|src=|href='[^#]|url\(|@import", text)
    assert {a["href"][1:] for tag, a in page.elements if tag == "a"} <= {a.get("id") for _, a in page.elements}
    assert "prefers-color-scheme:dark" in text
    words = " ".join(page.words)
    assert 'a<b & "c"' in words and rows[0]["timer"] in words and {"num_rows", "dtype"} <= {
        a["data-n"] for tag, a in page.elements if "data-n" in a}
    ratios = [a["class"] for tag, a in page.elements if a.get("data-n") == "ratio"]
    assert ratios == ["ratio", "ratio bad", "ratio good"]        # not timed, slower, same; the last is not in the other file
    assert all(verdict in page.words for verdict in ("not timed", "slower", "same"))
    assert "nan" not in words.lower() and "nan" not in " ".join(str(a) for _, a in page.elements).lower()

    # Bars are as long as their rates; marks of the copy and theirs have the same scale.
    def lengths(kind, side):
        return [float(re.search(rf"{side}:([\d.]+)%", a["style"])[1]) for tag, a in page.elements
                if tag == "i" and a.get("class", "ours") == kind]
    ours, theirs, copies = lengths("ours", "width"), lengths("peer", "width"), lengths("copy", "left")
    assert len(ours) == len(rows) - 1 and len(theirs) == 2 and len(copies) == len(rows) - 2
    scale = max(theirs) / (1e-3 * rows[2]["bytes"] / 1e-3)       # the longest: 1 ns
    assert ours == pytest.approx([r["gb_per_s"] * scale for r in rows[1:]], abs=0.1)
    assert copies == pytest.approx([1e-3 * r["bytes"] / r["copy_us"] * scale for r in rows[1:] if r["copy_us"]], abs=0.1)


def test_roofline(tegula, tmp_path, rows):
    """A point for each row at its bytes and rate; the roof is the copy's rate."""
    rows = [{**rows[1], "row": f"{op} n={n}", "op": op, "params": f"n={n}", "bytes": n, "cold_us": us, "gb_per_s": 1e-3 * n / us,
             "copy_us": us / 2} for op, n, us in (("moe_a", 1000, 1.0), ("moe_a", 10000, 1.0), ("quant_b", 100000, 10.0))]
    write_lines(tmp_path / "rows.jsonl", rows)
    assert tegula("report", "rows.jsonl", "-o", "page.html").returncode == 0
    page = Page((tmp_path / "page.html").read_text())
    points = [a for tag, a in page.elements if tag == "circle" and a.get("class") == "row"]
    x, y = ([float(a[k].rstrip("%")) for a in points] for k in ("cx", "cy"))
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.02) and x[0] < x[1]          # a decade each
    assert y[0] > y[1] and y[1] == y[2]                                                  # 1, 10 and 10 GB/s
    assert [a["fill"] for a in points] == ["var(--d0)", "var(--d0)", "var(--d1)"]
    roof = [a for tag, a in page.elements if tag == "line" and a.get("class") == "roof"]
    assert [(float(a["x1"].rstrip("%")), float(a["x2"].rstrip("%"))) for a in roof] == [(x[0], x[1]), (x[1], x[2])]
    decade = y[0] - y[1]
    assert [y[i] - float(roof[i]["y1"]) for i in (0, 1)] == pytest.approx([decade * 0.30103] * 2, abs=0.2)


def test_parameters_of_a_page_are_columns(tegula, tmp_path, rows):
    """Common ones are in the heading, frequent ones are columns, rare ones are words."""
    params = ["n=1 dtype=bf16 fused=1", "n=2 dtype=bf16 fused=1", "n=3 dtype=f32 fused=1 odd=yes"]
    write_lines(tmp_path / "rows.jsonl", [{**rows[1], "row": f"op_a {p}", "op": "op_a", "params": p} for p in params])
    assert tegula("report", "rows.jsonl", "-o", "page.html").returncode == 0
    text = (tmp_path / "page.html").read_text()
    assert "<h2 id='op_a'>op_a <small>fused=1</small></h2>" in text
    assert "<thead><tr><th>n</th><th>dtype</th><th class='left'>also</th>" in text
    assert [re.findall(r"<td(?: data-n='(?:n|dtype)'| class='left')>(.*?)</td>", line)
            for line in re.findall(r"^<tr>.*class='plot'.*$", text, re.M)] == [
        ["1", "bf16", ""], ["2", "bf16", ""], ["3", "f32", "odd=yes"]]


def test_summary_of_a_page(tegula, tmp_path, rows):
    """Geometric mean, rows met and the worst ones on top; what all rows have in common is in the heading."""
    rows = [{**row, "cold_us": 20.0, "copy_us": 19.5, "copy_share": 0.9} for row in rows]
    theirs = [{**row, "cold_us": us} for row, us in zip(rows[1:], (80.0, 40.0, 20.0, 10.0))]
    write_lines(tmp_path / "ours.jsonl", rows[:3])
    write_lines(tmp_path / "more.jsonl", rows[3:])
    write_lines(tmp_path / "theirs.jsonl", theirs)
    write_lines(tmp_path / "peer.jsonl", [{**row, "peer": "Tiles & 1"} for row in theirs])
    done = tegula("report", "ours.jsonl", "more.jsonl", "-o", "page.html", "--against", "theirs.jsonl")
    assert done.returncode == 0 and done.stdout == "page.html: 4 rows\n", done.stderr
    page = Page((tmp_path / "page.html").read_text())
    words = " ".join(" ".join(page.words).split())
    assert words.startswith(f"tegula on {rows[0]['device']} ")
    assert "4 rows of 1 op; half of them at 90 % of a plain copy's rate or more" in words
    assert "Against an earlier run: 1.41 times as fast (geometric mean of 4 rows); 3 met the goal (not slower), 1 did not" in words
    assert f"Slowest against theirs: 2.00: {rows[4]['row']} 1.00: {rows[3]['row']} 0.50: {rows[2]['row']}" in words
    assert "transpose num_cols=96 GB/s" in words                # the heading; bars and table have the rest
    assert len([a for tag, a in page.elements if tag == "i" and a.get("class") == "peer"]) == 4
    assert tegula("report", "ours.jsonl", "more.jsonl", "-o", "page.html", "--against", "peer.jsonl").returncode == 0
    words = " ".join(" ".join(Page((tmp_path / "page.html").read_text()).words).split())
    assert "Against Tiles & 1: 1.41 times as fast (geometric mean of 4 rows); 3 met the goal " \
           "(faster, or not slower and at the copy rate), 1 did not" in words


@pytest.mark.parametrize("gather_us", [None, 15.0])
def test_page_says_why_rows_are_below_the_roof(tegula, tmp_path, rows, gather_us):
    write_lines(tmp_path / "rows.jsonl", [*rows, {**rows[1], "row": "a at=host", "params": "at=host", "gather_us": gather_us}])
    assert tegula("report", "rows.jsonl", "-o", "page.html").returncode == 0
    roofline = (tmp_path / "page.html").read_text().split("Roofline")[1].split("<svg")[0]
    assert ("read a table in host memory (at=host, at=huge)" in roofline) == (gather_us is not None)


def test_files_of_a_report_may_follow_its_options(tegula, tmp_path, rows):
    for name, part in ("a", rows[:2]), ("b", rows[2:]), ("theirs", rows):
        write_lines(tmp_path / f"{name}.jsonl", part)
    words = ["a.jsonl", "b.jsonl", "-o", "page.html", "--against", "theirs.jsonl"]
    assert tegula("report", *words).returncode == 0
    page = (tmp_path / "page.html").read_text()
    for order in ([2, 3, 0, 4, 5, 1], [4, 5, 2, 3, 0, 1], [0, 4, 5, 1, 2, 3]):
        (tmp_path / "page.html").unlink()
        done = tegula("report", *(words[i] for i in order))
        assert done.returncode == 0 and (tmp_path / "page.html").read_text() == page, done.stderr


def test_a_page_of_all_files_of_record(tmp_path):
    """As README.md has it. Files of other programs lie there too; what they measured is no row."""
    shutil.copytree(ROOT / "bench", tmp_path / "bench")
    env = {**os.environ, "PATH": f"{TOOL.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", ROOT / "tests/tools/record.sh"], cwd=tmp_path, env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for path in (ROOT / "bench/results/h200").glob("*.jsonl") for line in path.open()]
    assert done.stdout == f"report.html: {sum(line.get('op', 'copy') != 'copy' for line in lines)} rows\n"
    page = (tmp_path / "report.html").read_text()
    assert "(geometric mean of " in page and f"<p>{done.stdout.split()[1]} rows of " in page


def test_no_page_without_rows(tegula, tmp_path):
    """Nor is one harmed that was there."""
    (tmp_path / "old.html").write_text("old")
    for page in "new.html", "old.html":
        assert tegula("bench", "transpose", "num_rows=64", "num_cols=128", "--device", "cpu", "--html", page).returncode == 2
    assert not (tmp_path / "new.html").exists() and (tmp_path / "old.html").read_text() == "old"


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_file_that_cannot_be_written_is_known_before_measuring(tegula, option):
    begin = time.monotonic()
    done = tegula("bench", "transpose", "--device", "cpu", option, "nowhere/file")
    assert done.returncode == 1 and time.monotonic() - begin < 5 and not done.stdout
    assert done.stderr == f"tegula bench: {option}: nowhere/file: No such file or directory\n"


@pytest.mark.parametrize("words, sentence", [
    (["transpose", "num_rows=64,x", "num_cols=9", "dtype=bf16"], 'transpose num_rows=x num_cols=9 dtype=bf16: num_rows: is "x", want '),
    (["transpose", "num_rows=3", "num_cols=5", "dtype=bf16", "offset=-3000"],
     "transpose num_rows=3 num_cols=5 dtype=bf16 offset=-3000: x: offset is -3000, want >= 0\n"),
    (["moe_topk_gate", "num_tokens=4", "num_experts=16", "num_topk=2,20"],
     "moe_topk_gate num_tokens=4 num_experts=16 num_topk=20: topk_idx: shape is [4, 20], want [4, 0..16]\n")])
def test_a_case_that_is_refused_is_known_before_measuring(tegula, tmp_path, words, sentence):
    """Not after the cases before it, and files of earlier runs stay."""
    for name in "old.jsonl", "old.html":
        (tmp_path / name).write_text("old")
    done = tegula("bench", *words, "--device", "cpu", "--json", "old.jsonl", "--html", "old.html")
    assert done.returncode == 2 and not done.stdout and done.stderr.startswith(f"tegula bench: {sentence}"), done.stdout + done.stderr
    assert all((tmp_path / name).read_text() == "old" for name in ("old.jsonl", "old.html"))
    assert tegula("bench", *words, "--device", "cpu", "--first-call").returncode == 2


def test_a_case_without_memory_is_left_out(tegula):
    done = tegula("bench", "transpose", "num_rows=64,4000000", "num_cols=500000", "dtype=i8", "--quick", "--no-check", "--device", "cpu")
    head, *lines = done.stdout.split("of copy\n")[1].splitlines()
    assert done.returncode == 0 and head == "transpose" and lines[0].startswith("num_rows=64 num_cols=500000 dtype=i8 "), done.stderr
    assert lines[1] == "num_rows=4000000 num_cols=500000 dtype=i8"
    assert re.fullmatch(r"  left out: needs [\d.]+ GB of host memory, [\d.]+ GB are free", lines[2])


def test_an_interrupted_run_leaves_its_files(tmp_path):
    sizes = ",".join(str(n) for n in range(64, 4096, 64))
    words = ["bench", "transpose", f"num_rows={sizes}", "num_cols=512", "dtype=f32", "--device", "cpu", "--json", "rows.jsonl",
             "--html", "page.html", "--no-check"]
    with subprocess.Popen([TOOL, *words], cwd=tmp_path, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        while not (tmp_path / "rows.jsonl").exists() or (tmp_path / "rows.jsonl").read_text().count("\n") < 3:
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        errors = run.stderr.read()
    measured = len(read_lines(tmp_path / "rows.jsonl")) - 1     # without the plain copy
    assert run.returncode == 1 and f"interrupted: {measured} of 63 rows were measured" in errors
    assert (tmp_path / "page.html").read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize("spread, is_noisy", [(0.05, False), (0.5, True)])
def test_noise_is_told(tegula, tmp_path, rows, spread, is_noisy):
    write_lines(tmp_path / "rows.jsonl", [{**row, "cold_spread": spread} for row in rows])
    assert ("too noisy" in tegula("bench", "--from", "rows.jsonl").stderr) == is_noisy


def test_noise_of_the_copy_is_no_rows(tegula, tmp_path, rows):
    write_lines(tmp_path / "rows.jsonl", [{**row, "cold_spread": spread} for row, spread in zip(rows, (0.5, 0.5, 0.05, 0.05))])
    assert not tegula("bench", "--from", "rows.jsonl").stderr           # one of three, with the copy two of four
    write_lines(tmp_path / "rows.jsonl", [{**row, "cold_spread": 0.5} for row in rows[:2]])
    assert "in 1 of 1 rows calls spread" in tegula("bench", "--from", "rows.jsonl").stderr


# ---- comparing ----

def with_time(row, cold_us, **more):
    return {**row, "cold_us": cold_us, **more}


def compare(tegula, tmp_path, ours, theirs):
    write_lines(tmp_path / "ours.jsonl", [ours])
    write_lines(tmp_path / "theirs.jsonl", theirs)
    return tegula("bench", "--from", "ours.jsonl", "--against", "theirs.jsonl")


def test_against_itself(tegula, rows):
    done = tegula("bench", "--from", "rows.jsonl", "--against", "rows.jsonl")
    assert done.returncode == 0
    assert "4 rows compared, 0 not met, geometric mean of the ratios 1.000" in done.stdout     # without the plain copy


def test_a_slower_copy_is_no_row_that_missed(tegula, tmp_path, rows):
    assert rows[0]["op"] == "copy"
    write_lines(tmp_path / "ours.jsonl", [with_time(rows[0], 2 * rows[0]["cold_us"]), rows[1]])
    write_lines(tmp_path / "theirs.jsonl", rows[:2])
    done = tegula("bench", "--from", "ours.jsonl", "--against", "theirs.jsonl")
    assert done.returncode == 0 and "1 row compared, 0 not met" in done.stdout and "note" not in done.stdout


@pytest.mark.parametrize("ours, theirs, verdict, code", [
    (100.0, 90.0, "slower", 1), (100.0, 98.0, "same", 0), (100.0, 97.0, "slower", 1), (100.0, 120.0, "faster", 0),
    (10.6, 10.0, "same", 0), (10.8, 10.0, "slower", 1),        # 7 % below 20 us
])
def test_against_an_earlier_run(tegula, tmp_path, rows, ours, theirs, verdict, code):
    done = compare(tegula, tmp_path, with_time(rows[1], ours), [with_time(rows[1], theirs)])
    assert re.search(rf" {ours / theirs:.3f} .* {verdict}$", done.stdout, re.M), done.stdout
    assert done.returncode == code


@pytest.mark.parametrize("ours, theirs, copy, verdict, code", [
    (96.0, 100.0, 50.0, "met: faster", 0),
    (98.0, 100.0, 50.0, "not met: not faster", 1),
    (98.0, 100.0, 94.0, "met: not slower, at the copy rate", 0),
    (102.0, 100.0, 98.0, "met: not slower, at the copy rate", 0),
    (102.0, 100.0, 97.0, "not met: not faster", 1),
    (102.0, 100.0, None, "not met: not faster", 1),
    (104.0, 100.0, 104.0, "not met: slower", 1),
])
def test_against_another_library(tegula, tmp_path, rows, ours, theirs, copy, verdict, code):
    mine = with_time(rows[1], ours, copy_us=copy)
    done = compare(tegula, tmp_path, mine, [with_time(rows[1], theirs, peer="Tiles 1"), with_time(rows[1], 900, peer="Slow 1")])
    assert re.search(rf" {verdict}$", done.stdout, re.M), done.stdout
    assert done.returncode == code


def test_rows_without_a_partner_are_a_note(tegula, tmp_path, rows):
    done = compare(tegula, tmp_path, rows[1], [rows[2]])
    assert done.returncode == 0
    assert "0 rows compared, 0 not met\n" in done.stdout
    assert "note: 1 of our rows are not in theirs.jsonl" in done.stdout
    assert "note: 1 rows of theirs.jsonl were not run here" in done.stdout


def test_another_device_gets_no_verdict(tegula, tmp_path, rows):
    write_lines(tmp_path / "ours.jsonl", rows[1:3])
    write_lines(tmp_path / "theirs.jsonl", [with_time(rows[1], 1e-3, device="Abacus"), rows[2]])
    done = tegula("bench", "--from", "ours.jsonl", "--against", "theirs.jsonl")
    assert done.returncode == 0 and re.search(" another device$", done.stdout, re.M)
    assert "note: 1 rows are from another device (Abacus)" in done.stdout


@pytest.mark.parametrize("line", [
    "nonsense", "{", "{}", '{"row": "a b"', '{"row": "a b"} more', '{"row": ["a"]}', '{"row": {"a": 1}}', '{"row": true}',
    '{"row": "a\\u0041"}', '{"row": "a", "cold_us": "1"}', '{"row": 1}', '{"row": "a", "cold_us": 1e999}',
    '{"row": "a", "cold_us": nan}', '{"row": "a" "op": "b"}', '{"op": "a"}', '{"row": "%s"}' % ("a" * 5000), '["row"]',
])
def test_the_reader_is_strict(tegula, tmp_path, rows, line):
    (tmp_path / "bad.jsonl").write_text(json.dumps(rows[1]) + "\n" + line + "\n")
    done = tegula("bench", "--from", "rows.jsonl", "--against", "bad.jsonl")
    assert done.returncode == 2
    assert done.stderr.startswith("tegula bench: --against: bad.jsonl:2: not a row as tegula bench --json writes it")


def test_the_reader_passes_over_unknown_fields(tegula, tmp_path, rows):
    done = compare(tegula, tmp_path, rows[1], [{**rows[1], "weather": "fine \"and\" \\ dry", "kernels": -1.5e-3, "x": None}])
    assert done.returncode == 0 and "1 row compared" in done.stdout


# ---- files beside the tool ----

def test_readme_says_where_the_command_is():
    readme = (ROOT / "README.md").read_text()
    assert re.search(r"`tegula` \(after `make build`\s+it is\s+`build/bin/tegula`\)", readme[:readme.index("\ntegula report")])


def test_documents_promise_a_glibc_for_sources_only():
    """What a wheel needs, auditwheel finds out and names in its file name."""
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    claims = [claim for path in documents for claim in re.findall(r"(?:\S+\s+){2}glibc\s+[\d.]+", path.read_text())]
    assert claims == ["builds on glibc 2.28"]


def test_peers_are_mapped():
    done = subprocess.run([sys.executable, str(ROOT / "bench/peers/map_tilekernels.py"), "--check"], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_a_dry_run_says_what_would_be_timed(tegula, rows):
    """The rows of a run, in its order, with their bytes."""
    done = tegula("bench", *SMALL, "--dry-run", "--device", "cpu")
    heads, *lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and heads == ["op", "bytes", "parameters"]
    assert lines == [[row["op"], str(int(row["bytes"])), row["params"]] for row in rows[1:]]


def test_peers_rows_are_rows_of_ours(tegula, tmp_path):
    """A mapped row has the name and the bytes that the tool itself gives to those parameters. Bytes that depend on a random
    routing are the average in peers' rows."""
    for peer in read_lines(PEERS):
        done = tegula("bench", *peer["row"].split(), "--dry-run", "--device", "cpu")
        assert done.returncode == 0, done.stderr
        op, num_bytes, params = done.stdout.splitlines()[-1].split(maxsplit=2)
        assert (f"{op} {params}", params) == (peer["row"], peer["params"])
        is_drawn = peer["op"].startswith(("moe_get_fused_mapping", "moe_expand_to_fused", "moe_reduce_fused"))
        assert abs(int(num_bytes) - peer["bytes"]) <= 0.02 * is_drawn * peer["bytes"], peer["row"]


def test_documents_show_what_was_measured():
    done = subprocess.run([sys.executable, str(ROOT / "scripts/results_tables.py"), "--check"], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_picture():
    """Bars are as long as their numbers; nothing is cut off."""
    root = xml.etree.ElementTree.fromstring((ROOT / "docs/speed.svg").read_text())
    width, height = map(int, root.get("viewBox").split()[2:])
    bars = [e for e in root if e.tag.endswith("rect")]
    labels = [e for e in root if e.tag.endswith("text") and re.match(r"[\d.]+( %)?, \d+ rows", e.text)]
    assert len(bars) == len(labels) >= 8
    for bar, label in zip(bars, labels):
        value = float(label.text.split(",")[0].split()[0]) / (100 if "%" in label.text else 1)
        assert float(bar.get("width")) == pytest.approx(150 * value, abs=1)
        assert float(label.get("x")) > float(bar.get("x")) + float(bar.get("width"))
    for text in (e for e in root if e.tag.endswith("text")):
        is_right_aligned = text.get("text-anchor") == "end"
        assert (7 * len(text.text) < float(text.get("x")) if is_right_aligned else
                float(text.get("x")) + 7.3 * len(text.text) < width) and float(text.get("y")) < height, text.text


def test_tables_are_made_from_rows(tmp_path, rows):
    write_lines(tmp_path / "r.jsonl", rows)
    page = tmp_path / "page.md"
    page.write_text(f"# A\n\n<!-- table: {tmp_path}/r.jsonl op=transpose -->\nstale\n<!-- end table -->\nend\n")
    script = [sys.executable, str(ROOT / "scripts/results_tables.py")]
    assert subprocess.run([*script, "--check", str(page)], capture_output=True).returncode == 1
    assert subprocess.run([*script, str(page)], capture_output=True).returncode == 0
    assert subprocess.run([*script, "--check", str(page)], capture_output=True).returncode == 0
    text = page.read_text()
    assert "stale" not in text and text.endswith("<!-- end table -->\nend\n")
    assert text.count("\n| num_rows=") == 4 and rows[0]["device"] in text


def test_environment_page_lists_exactly_the_settings(tegula):
    page = (ROOT / "docs/environment.md").read_text()
    documented = re.findall(r"^\| `(TEGULA_\w+)` \|", page, re.M)
    shown = re.findall(r"^(TEGULA_\w+) ", tegula("info").stdout, re.M)
    read = set(re.findall(r'"(TEGULA_\w+)"', (ROOT / "src/core/environment.c").read_text()))
    assert documented == shown and set(shown) == read


def test_settings_are_read_in_one_place():
    readers = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src").glob("**/*.c")
               if re.search(r"\b(secure_)?getenv\s*\(", path.read_text())}
    assert readers <= {"src/core/environment.c"}


def test_documented_commands_run(tegula, tmp_path):
    env = {**os.environ, "PATH": f"{TOOL.parent}:{os.environ['PATH']}", "TEGULA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(["sh", str(ROOT / "tests/tools/commands.sh")], cwd=tmp_path, env=env, text=True,
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "report.html").exists()
