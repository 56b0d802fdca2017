#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Changes one thing at a time in the kernels and runs their tests on the emulated device.

    mutate.py [--kind KIND,...] [--seeds N] [--tsan] [--without MODE,...] [--only FILE[:LINE],...] [--unlisted]
              [--sample N [--seed S]] [--resume] [--jobs N] [--minutes M] [--timeout S] [FOLDER]
    mutate.py --check                   only whether every line of mutations.txt is of a change that there is

    kind     what is changed                                            modes of the tests, in turn (planting.py)
    sync     a statement that orders threads or waits is taken out      any, limit, tsan; --tsan: only that
    fence    __threadfence() is taken out                               weak
    order    acquire and release become relaxed                         weak, tsan; a cluster's barrier: tsan
    stride   a loop over the grid's stride takes one trip               limit
    shared   a store through shared_store_*() is taken out              any, older
    bound    < becomes <=, <= becomes <                                 asan, with a seed per case; older, if none runs it

Builds the tests in FOLDER (default build/mutate). A mutant is noticed when a test of an op whose kernels include the
file fails at one of the seeds. Bounds are tried all at once: a kernel is compiled with switches for all of its bounds, and
each case runs again with those that can change its result (../mutants.c). A constant has no switch and is tried as the
other kinds are. A mutant that is not noticed must be listed in mutations.txt beside this file, with the
reason, and one that is noticed must not be; --unlisted leaves listed ones out. --sample takes N of all mutants, chosen
by S; --jobs tries N at a time; --minutes begins none later than that; --resume goes on where earlier runs in FOLDER
ended, for files that are the same now. --without leaves out modes, such as tsan where there is
no clang; what is not noticed then is tried again by the next run. A tally per kind comes last; the exit status is 1 if a
mutant is unnoticed and not listed, or listed and noticed, or was not tried."""
import argparse, collections, hashlib, itertools, json, pathlib, queue, random, re, sys, threading, time, typing
from planting import Tests, planted, root

# a statement that orders threads or waits; the arguments hold no semicolon
calls = (r"__syncthreads|__syncwarp|mbar_wait|mbar_wait_cluster|mbar_init_fence|cluster_wait|bulk_fence"
         r"|pdl_wait|(?:barrier_sync|barrier_arrive|copy_async_wait|bulk_wait|bulk_wait_read)<[^>]*>")
modes_of = {"sync": ["any", "limit", "tsan"], "fence": ["weak"], "order": ["weak", "tsan"], "stride": ["limit"],
            "shared": ["any", "older"], "bound": ["asan", "older"]}    # in turn, the cheapest first: few need another
patterns = {
    "sync": r"\b(" + calls + r")\([^;]*\);",
    "fence": r"\b__threadfence\(\);",
    "order": r"\b(?:atomic_inc_acq_rel|store_release_u32|load_acquire_u32|cluster_arrive)\(",
    "stride": r"\b\w+ \+= [^;%/{]*\b(?:gridDim\.[xyz]|num_blocks)\b[^;)]*(?=[;)])",
    "shared": r"\bshared_store_\w+\([^;]*\);",
    "bound": r"(?<=[\w)\]] )<=?(?= [\w(-])",
}
relaxed = {"atomic_inc_acq_rel(": "atomic_inc_relaxed(", "store_release_u32(": "store_relaxed_u32(",
           "load_acquire_u32(": "load_relaxed_u32(", "cluster_arrive(": "cluster_arrive_relaxed("}


def blanked(pattern, text, flags):
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=flags)


def changes(text, kind):
    """(line, the statement, begin and end of what is changed, what it becomes) for each."""
    code = blanked(r"/\*.*?\*/|//[^\n]*", text, re.S)
    if kind == "bound":                 # what a compiler checks is none, nor is a hint of how many blocks an SM holds, nor min
        code = blanked(r"^#[^\n]*|static_assert\([^;]*;|template <[^;{]*?>|enum \{\s*MIN_BLOCKS[^;]*;"
                       r"|\b(\w[\w ./]*) <=? (\w+) \? \1 : \2\b", code, re.M)
    for m in re.finditer(patterns[kind], code):
        begin, new = m.start(), ";"
        if kind == "sync" and m[1] == "cluster_wait":   # with its arrive: without it, it is merely misuse
            arrive = max(code.rfind(f"cluster_arrive{x}();", 0, begin) for x in ("", "_relaxed"))
            if arrive >= 0 and code.count("\n", arrive, begin) <= 2:
                begin = arrive
        if kind == "order":
            new = relaxed[m[0]]
        elif kind == "stride":
            new = f"{m[0].split()[0]} += 1 << 30"
        elif kind == "bound":
            new = "<" if m[0] == "<=" else "<="
        line = text.count("\n", 0, m.start()) + 1
        what = m[0] if kind != "bound" else text.splitlines()[line - 1].strip()
        yield line, what, begin, m.end(), new


def kernel_files():
    """Kernels and the headers of their own, as paths below the root."""
    paths = sorted([*root.glob("src/*/*.cu"), *root.glob("src/**/*.cuh")])
    return [p.relative_to(root).as_posix() for p in paths if root / "src/cuda" not in p.parents]


def write_switched(folder):
    """Writes all kernels into the folder with comparisons that a test program can move (mutants.hpp). Returns the numbers of
    these mutants: {(file, which of its bounds): number}."""
    numbers, preamble = {}, pathlib.Path(__file__).with_name("mutants.hpp").read_text()
    for file in kernel_files():
        text = (root / file).read_text()
        for which, (_, _, begin, end, _) in reversed([*enumerate(changes(text, "bound"))]):
            numbers[file, which] = len(numbers)
            form = "emu_less_equal" if text[begin:end] == "<=" else "emu_less"
            text = f"{text[:begin]}<= {form}{{ {numbers[file, which]} }} <={text[end:]}"
        path = pathlib.Path(folder, file.removeprefix("src/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{preamble}#line 1\n{text}")
    assert len(numbers) <= 4092, "mutants.hpp and mutants.c have room for fewer"
    return numbers


class Bounds:
    """Tries all bounds at once: a test program runs each case again with every mutant that can matter to it (../mutants.c)."""
    shares = 5          # of a program's cases, tried one after the other: the first few notice most

    def __init__(self, tests, resume):
        self.tests, self.switched = tests, tests.folder / "switched"
        self.numbers = write_switched(self.switched)
        texts = "".join((self.switched / f.removeprefix("src/")).read_text() for f in kernel_files())
        self.results = tests.folder / f"bounds-{hashlib.sha256(texts.encode()).hexdigest()[:12]}.txt"
        earlier = self.results.read_text().splitlines(True) if resume and self.results.exists() else \
            self.of_other_kernels() if resume else []
        self.results.write_text("".join(line for line in earlier if not line.startswith("skip ")))
        self.results.with_suffix(".json").write_text(json.dumps({key: n for n, key in self.keys().items()}))
        self.read()

    def keys(self):
        """number: a text that says which bound of which text of a file."""
        digests = {f: hashlib.sha256((root / f).read_bytes()).hexdigest()[:12] for f in kernel_files()}
        return {n: f"{file} {which} {digests[file]}" for (file, which), n in self.numbers.items()}

    def of_other_kernels(self):
        """What runs with other kernels noticed, with today's numbers: lines about files that are the same."""
        numbers, lines = {key: n for n, key in self.keys().items()}, {}
        for path in self.tests.folder.glob("bounds-*.json"):
            now = {n: numbers[key] for key, n in json.loads(path.read_text()).items() if key in numbers}
            for line in path.with_suffix(".txt").read_text().splitlines(True):
                if m := re.match(r"noticed (\d+) ", line):
                    if int(m[1]) in now:
                        lines[now[int(m[1])]] = f"noticed {now[int(m[1])]} {line[m.end():]}"
        return lines.values()

    def read(self):
        self.noticed, self.done, self.evaluated = {}, set(), set()
        self.equal_in = collections.defaultdict(list)           # number: programs
        for line in filter(None, self.results.read_text().splitlines()):
            word, which, *rest = line.split(None, 2)
            if word == "noticed":
                self.noticed.setdefault(int(which), *rest)
            elif word == "seen":
                flags, program = rest[0].split()
                self.evaluated.add(int(which))
                self.equal_in[int(which)] += [program] * (flags == "3")
            elif word == "done":
                self.done.add(which)

    def append(self, line):
        with self.results.open("a") as f:
            f.write(f"{line}\n")

    def only(self, wanted):
        """Programs try no others: [(file, which)]."""
        self.append("\n".join(f"skip {n}" for key, n in self.numbers.items() if key not in wanted))

    def run(self, program, *variables):
        """Kernels with switches, compiled once and kept."""
        return self.tests.run("asan", program, 0, [f"TEGULA_TEST_SOURCE={self.switched}", "TEGULA_NUM_THREADS=1",
                                                   "OMP_NUM_THREADS=1", "ASAN_OPTIONS=detect_leaks=0:symbolize=0", *variables],
                              timeout=7200)

    def try_all(self, task):
        """With every case of a program's share, all mutants that have not been noticed yet, each in so many cases."""
        program, share, tries = task
        name = f"{program}:{share}:{tries}"
        if name not in self.done:
            less = ["TEGULA_TEST_BLOCKS=list"] * (share > 0)    # what is not a list is not shared
            if seen := self.run(program, f"TEGULA_TEST_MUTANTS={self.results}", f"TEGULA_TEST_TRIES={tries}",
                                f"TEGULA_TEST_SHARE={share}/{self.shares}", *less):
                raise RuntimeError(f"{program} fails without a mutant: {seen}")
            self.append(f"done {name}")

    def first_seen(self, file, which):
        """How the mutant is noticed, '' if it is not; None: it is in no code that runs, e.g. in a constant."""
        number = self.numbers[file, which]
        if number in self.noticed:
            return self.noticed[number]
        if number not in self.evaluated:
            return None
        for program in dict.fromkeys(self.equal_in[number]):    # what is not a list: no list has as many cases
            if seen := self.run(program, f"TEGULA_TEST_MUTANT={number}", "TEGULA_TEST_SHARE=999999/1000000"):
                return seen[:100]
        return ""

    def can_matter(self, file, which):
        return self.numbers[file, which] not in self.evaluated or self.equal_in[self.numbers[file, which]]


def programs_of(file):
    """The tests of ops with kernels that include the file, the nearest first: those whose names begin like a kernel's."""
    kernels, found = [root / file], []
    for path in kernels:                # grows: whoever includes one of them
        name = path.relative_to(root / "src").as_posix()
        kernels += [p for p in sorted([*root.glob("src/*/*.cu"), *root.glob("src/**/*.cuh")])
                    if p not in kernels and f'#include "{name}"' in p.read_text()]
    for path in kernels:
        tests = [p.stem for p in sorted((root / "tests" / path.parent.name).glob("test_*.c"))]
        ops = {"histogram": ["group_count", "aux_fi"]}.get(path.stem) or \
            (["pre_fwd", "norm_fn_fwd", "norm_fn_parts_fwd"] if path.stem.startswith("pre_fwd") else []) or \
            sorted((t[5:] for t in tests if path.stem.startswith(t[5:])), key=len)[-1:]
        if path.suffix == ".cu" and not ops:
            sys.exit(f"{path}: no test is named like it")
        found += [t for op in ops for t in tests if t[5:].startswith(op) and t not in found]
    return found


class Mutant(typing.NamedTuple):
    file: str
    kind: str
    which: int          # of the changes of this kind in the file
    line: int
    what: str           # the statement
    text: str           # of the file, changed

    def key(self):      # of this text: a journal may be older than a kernel
        return f"{self.file} {self.kind} {self.which} {self.what} {hashlib.sha256(self.text.encode()).hexdigest()[:12]}"


def listed_reasons():
    """{(file, kind, mark): reason} of mutations.txt."""
    listed = {}
    for line in pathlib.Path(__file__).with_name("mutations.txt").read_text().splitlines():
        if m := re.fullmatch(r"(\S+) (\w+) (\d+|`[^`]*`(?: #\d+)?) (.*)", line):
            listed[m[1], m[2], m[3]] = m[4]
        elif line and not line.startswith("#"):
            sys.exit(f"mutations.txt: cannot read {line!r}")
    return listed


def marked_mutants(kinds):
    """(mutant, its mark in mutations.txt) for each."""
    for file in kernel_files():
        text = (root / file).read_text()
        for kind in kinds:
            same = collections.Counter()
            for which, (line, what, begin, end, new) in enumerate(changes(text, kind)):
                changed = text[:begin] + new + text[end:]
                mark = str(which)
                if kind == "bound":     # by its text: kernels have many bounds, and change
                    mark = re.sub(r"\s*/\*.*", "", changed.splitlines()[line - 1])
                    mark = f"`{mark.strip()}`"
                    same[mark] += 1
                    mark += f" #{same[mark]}" * (same[mark] > 1)
                yield Mutant(file, kind, which, line, what, changed), mark


def choose(args):
    """The mutants to try, {those that may go unnoticed: reason}, and lines of mutations.txt for which there is none."""
    listed, only = listed_reasons(), [o for o in args.only.split(",") if o]
    wanted, accepted = [], {}
    for mutant, mark in marked_mutants(args.kinds):
        reason = listed.pop((mutant.file, mutant.kind, mark), None)
        if reason:
            accepted[mutant] = reason
        if (not only or mutant.file in only or f"{mutant.file}:{mutant.line}" in only) and not (args.unlisted and reason):
            wanted.append(mutant)
    if args.sample and args.sample < len(wanted):
        chosen = sorted(random.Random(args.seed).sample(range(len(wanted)), args.sample))
        wanted = [wanted[i] for i in chosen]
    return wanted, accepted, [" ".join(key) for key in listed if key[1] in args.kinds]


class Run:
    """Tries mutants, several at a time, says of each how it is noticed, and keeps that in a journal."""

    def __init__(self, args, wanted, accepted):
        self.args, self.wanted, self.accepted = args, wanted, accepted
        folder = pathlib.Path(args.folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self.journal = folder / "journal.json"
        self.done = json.loads(self.journal.read_text()) if args.resume and self.journal.exists() else {}
        self.tests, self.programs = Tests(folder), {file: programs_of(file) for file in {m.file for m in wanted}}
        self.bounds = Bounds(self.tests, args.resume) if "bound" in args.kinds else None
        self.tally, self.wrong, self.failures = collections.defaultdict(collections.Counter), 0, []
        self.lock, self.end = threading.Lock(), time.monotonic() + 60 * args.minutes
        needed = sorted({(mode, program) for m in wanted for mode in self.modes(m) for program in self.programs[m.file]})
        for mode in {mode for mode, _ in needed}:
            self.tests.build(mode, {program for of, program in needed if of == mode})
        self.passes, self.locks = {}, {key: threading.Lock() for key in needed}

    def modes(self, mutant):
        is_shared = mutant.kind == "order" and mutant.what.startswith("cluster")    # orders shared memory, which TSan watches
        return [m for m in (["tsan"] if self.args.tsan or is_shared else modes_of[mutant.kind])
                if m not in self.args.without.split(",")]

    def require_pass(self, mode, program):      # without a mutant; fills the cache, too
        with self.locks[mode, program]:
            if (mode, program) not in self.passes:
                self.passes[mode, program] = self.tests.run(mode, program, seed=0)
            if seen := self.passes[mode, program]:
                raise RuntimeError(f"{program} ({mode}) fails without a mutant: {seen}")

    def for_each(self, things, work):           # several at a time, until the end
        todo = queue.SimpleQueue()
        for thing in things:
            todo.put(thing)

        def worker():
            while time.monotonic() < self.end:
                try:
                    work(todo.get_nowait())
                except queue.Empty:
                    return
                except RuntimeError as failure:         # of one program; the others go on
                    self.failures.append(str(failure))
        workers = [threading.Thread(target=worker) for _ in range(self.args.jobs)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()

    def try_bounds(self, todo):
        self.bounds.only({(m.file, m.which) for m in todo})
        for tries in (25, 100000):      # few cases notice most; what is left then is tried with all
            self.bounds.read()
            numbers = {self.bounds.numbers[m.file, m.which]: m.file for m in todo}
            of_bounds = collections.Counter(
                program for number, file in numbers.items() if number not in self.bounds.noticed
                for program in (self.programs[file] if tries == 25 else set(self.bounds.equal_in[number])))
            self.for_each([(program, share, tries) for share in range(self.bounds.shares)
                           for program, _ in of_bounds.most_common()], self.bounds.try_all)
        self.bounds.read()

    def first_seen(self, mutant):
        if mutant.kind == "bound" and (seen := self.bounds.first_seen(mutant.file, mutant.which)) is not None:
            return seen
        with planted(mutant.file, mutant.text) as fault:
            for mode, program, seed in itertools.product(self.modes(mutant), self.programs[mutant.file],
                                                         range(self.args.seeds)):
                self.require_pass(mode, program)
                if seen := self.tests.run(mode, program, seed, fault=fault, timeout=self.args.timeout):
                    if "TGL_ERR_COMPILE" in seen:
                        raise RuntimeError(f"{mutant.file} {mutant.kind} {mutant.which} does not compile: {mutant.what}")
                    return f"{mode}, seed {seed}: {seen[:100]}"
        return ""

    def try_one(self, mutant):
        seen = self.first_seen(mutant)
        with self.lock:
            self.done[mutant.key()] = seen
            kept = {key: seen for key, seen in self.done.items() if seen or not self.args.without}
            self.journal.with_suffix(".new").write_text(json.dumps(kept))
            self.journal.with_suffix(".new").replace(self.journal)
            self.report(mutant)

    def report(self, mutant):
        seen, reason, kind = self.done[mutant.key()], self.accepted.get(mutant), mutant.kind
        self.tally[kind].update(tried=1, noticed=int(bool(seen)), accepted=int(bool(reason and not seen)))
        if bool(seen) == bool(reason) and not (seen and self.args.tsan):
            self.wrong += 1
        verdict = seen + "   BUT IT IS IN mutations.txt" * bool(seen and reason and not self.args.tsan) if seen else \
            f"not noticed ({reason})" if reason else "NOT NOTICED" + ": the sides are never equal" * (
                kind == "bound" and not self.bounds.can_matter(mutant.file, mutant.which))
        print(f"{mutant.file}:{mutant.line:<4} {kind:6} {mutant.what[:60]:62} {verdict}", flush=True)

    def try_all(self):
        todo = []
        for mutant in self.wanted:
            if mutant.key() in self.done:
                self.report(mutant)
            else:
                todo.append(mutant)
        if self.bounds:
            self.try_bounds([m for m in todo if m.kind == "bound"])
        if self.args.jobs > 1:          # all at once: workers would wait for the first one with a program
            self.for_each(sorted({(self.modes(m)[0], p) for m in todo if self.modes(m) and m.kind != "bound"
                                  for p in self.programs[m.file]}), lambda key: self.require_pass(*key))
            random.Random(0).shuffle(todo)
        self.for_each(todo, self.try_one)

    def print_tally(self):
        """Is every mutant tried, and noticed or listed?"""
        for kind, n in self.tally.items():
            print(f"{kind}: {n['noticed']} of {n['tried']} noticed, {n['accepted']} accepted, "
                  f"{n['tried'] - n['noticed'] - n['accepted']} not noticed")
        print(*self.failures, sep="\n", end="\n" * bool(self.failures))
        untried = len(self.wanted) - sum(n["tried"] for n in self.tally.values())
        noticed = sum(n["noticed"] for n in self.tally.values())
        print(f"{noticed} of {len(self.wanted)} noticed, {self.wrong} wrong, {untried} not tried")
        return not (self.wrong or untried or self.failures)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=str(root / "build/mutate"))
    parser.add_argument("--kind", default="sync", help="separated by commas, or all")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--tsan", action="store_true", help="with ThreadSanitizer (clang)")
    parser.add_argument("--without", default="", help="modes, separated by commas")
    parser.add_argument("--only", default="", help="src/x/y.cu or src/x/y.cu:12, separated by commas")
    parser.add_argument("--unlisted", action="store_true", help="leave out those in mutations.txt")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--timeout", type=float, default=600, help="seconds after which a test hangs")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    args.kinds = list(modes_of) if args.check or args.kind == "all" else args.kind.split(",")
    return args


def main():
    args = parse()
    wanted, accepted, missing = choose(args)
    if args.check:
        print(*(f"mutations.txt: no such change: {mark}" for mark in missing), sep="\n")
        return bool(missing)
    run = Run(args, wanted, accepted)
    for mark in missing:
        print(f"{mark}   IS IN mutations.txt, BUT NOT IN THE FILE")
    run.wrong = len(missing)
    run.try_all()
    return not run.print_tally()


if __name__ == "__main__":
    sys.exit(main())
