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
import argparse, collections, hashlib, itertools, json, pathlib, queue, random, re, sys, threading, time
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


def main():
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
    if args.check:
        args.kind = "all"
    only = [o for o in args.only.split(",") if o]
    kinds = list(modes_of) if args.kind == "all" else args.kind.split(",")
    folder = pathlib.Path(args.folder).resolve()
    if not args.check:
        folder.mkdir(parents=True, exist_ok=True)
    journal = folder / "journal.json"
    done = json.loads(journal.read_text()) if args.resume and journal.exists() else {}

    listed = {}                         # (file, kind, which): reason
    for line in pathlib.Path(__file__).with_name("mutations.txt").read_text().splitlines():
        if m := re.fullmatch(r"(\S+) (\w+) (\d+|`[^`]*`(?: #\d+)?) (.*)", line):
            listed[m[1], m[2], m[3]] = m[4]
        elif line and not line.startswith("#"):
            sys.exit(f"mutations.txt: cannot read {line!r}")

    wanted, accepted = [], {}           # accepted: (file, kind, number): reason
    for name in kernel_files():
        text = (root / name).read_text()
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
                if (name, kind, mark) in listed:
                    accepted[name, kind, which] = listed.pop((name, kind, mark))
                if (not only or name in only or f"{name}:{line}" in only) and \
                        not (args.unlisted and (name, kind, which) in accepted):
                    wanted.append((name, kind, which, line, what, changed))
    missing = [" ".join(key) for key in listed if key[1] in kinds]
    if args.check:
        print(*(f"mutations.txt: no such change: {mark}" for mark in missing), sep="\n")
        return bool(missing)
    if args.sample and args.sample < len(wanted):
        chosen = sorted(random.Random(args.seed).sample(range(len(wanted)), args.sample))
        wanted = [wanted[i] for i in chosen]

    tests, programs = Tests(folder), {name: programs_of(name) for name in {name for name, *_ in wanted}}
    bounds = Bounds(tests, args.resume) if "bound" in kinds else None

    def modes(kind, what):
        is_shared = kind == "order" and what.startswith("cluster")      # orders shared memory, which TSan watches
        return [m for m in (["tsan"] if args.tsan or is_shared else modes_of[kind]) if m not in args.without.split(",")]

    needed = sorted({(mode, program) for name, kind, _, _, what, _ in wanted for mode in modes(kind, what)
                     for program in programs[name]})
    for m in {m for m, _ in needed}:
        tests.build(m, {program for of, program in needed if of == m})
    passes, locks = {}, {key: threading.Lock() for key in needed}

    def require_pass(mode, program):    # without a mutant; fills the cache, too
        with locks[mode, program]:
            if (mode, program) not in passes:
                passes[mode, program] = tests.run(mode, program, seed=0)
            if seen := passes[mode, program]:
                raise RuntimeError(f"{program} ({mode}) fails without a mutant: {seen}")

    tally, wrong, end = collections.defaultdict(collections.Counter), len(missing), time.monotonic() + 60 * args.minutes
    for mark in missing:
        print(f"{mark}   IS IN mutations.txt, BUT NOT IN THE FILE")

    def key_of(name, kind, which, line, what, text):    # of this text: a journal may be older than a kernel
        return f"{name} {kind} {which} {what} {hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def report(name, kind, which, line, what, text):
        nonlocal wrong
        seen, reason = done[key_of(name, kind, which, line, what, text)], accepted.get((name, kind, which))
        tally[kind].update(tried=1, noticed=int(bool(seen)), accepted=int(bool(reason and not seen)))
        if bool(seen) == bool(reason) and not (seen and args.tsan):
            wrong += 1
        verdict = seen + "   BUT IT IS IN mutations.txt" * bool(seen and reason and not args.tsan) if seen else \
            f"not noticed ({reason})" if reason else \
            "NOT NOTICED" + ": the sides are never equal" * (kind == "bound" and not bounds.can_matter(name, which))
        print(f"{name}:{line:<4} {kind:6} {what[:60]:62} {verdict}", flush=True)

    lock, failures = threading.Lock(), []

    def for_each(things, work):         # several at a time, until the end
        todo = queue.SimpleQueue()
        for thing in things:
            todo.put(thing)

        def worker():
            while time.monotonic() < end:
                try:
                    work(todo.get_nowait())
                except queue.Empty:
                    return
                except RuntimeError as failure:         # of one program; the others go on
                    failures.append(str(failure))
        workers = [threading.Thread(target=worker) for _ in range(args.jobs)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()

    todo = []
    for mutant in wanted:
        if key_of(*mutant) in done:
            report(*mutant)
        else:
            todo.append(mutant)
    if bounds:
        bounds.only({(name, which) for name, kind, which, *_ in todo if kind == "bound"})
        for tries in (25, 100000):      # few cases notice most; what is left then is tried with all
            bounds.read()
            left = {bounds.numbers[name, which]: name for name, kind, which, *_ in todo if kind == "bound"
                    and bounds.numbers[name, which] not in bounds.noticed}
            of_bounds = collections.Counter(p for number, name in left.items()
                                            for p in (programs[name] if tries == 25 else set(bounds.equal_in[number])))
            for_each([(program, share, tries) for share in range(bounds.shares) for program, _ in of_bounds.most_common()],
                     bounds.try_all)
        bounds.read()

    def first_seen(name, kind, which, what, text):
        if kind == "bound" and (seen := bounds.first_seen(name, which)) is not None:
            return seen
        with planted(name, text) as fault:
            for mode, program, seed in itertools.product(modes(kind, what), programs[name], range(args.seeds)):
                require_pass(mode, program)
                if seen := tests.run(mode, program, seed, fault=fault, timeout=args.timeout):
                    if "TGL_ERR_COMPILE" in seen:
                        raise RuntimeError(f"{name} {kind} {which} does not compile: {what}")
                    return f"{mode}, seed {seed}: {seen[:100]}"
        return ""

    def write_journal():
        kept = {key: seen for key, seen in done.items() if seen or not args.without}
        journal.with_suffix(".new").write_text(json.dumps(kept))
        journal.with_suffix(".new").replace(journal)

    def try_one(mutant):
        name, kind, which, line, what, text = mutant
        seen = first_seen(name, kind, which, what, text)
        with lock:
            done[key_of(*mutant)] = seen
            write_journal()
            report(*mutant)

    if args.jobs > 1:                   # all at once: workers would wait for the first one with a program
        for_each(sorted({(modes(kind, what)[0], p) for name, kind, _, _, what, _ in todo if modes(kind, what) and kind != "bound"
                         for p in programs[name]}), lambda key: require_pass(*key))
        random.Random(0).shuffle(todo)
    for_each(todo, try_one)
    for kind, n in tally.items():
        print(f"{kind}: {n['noticed']} of {n['tried']} noticed, {n['accepted']} accepted, "
              f"{n['tried'] - n['noticed'] - n['accepted']} not noticed")
    print(*failures, sep="\n", end="\n" * bool(failures))
    untried = len(wanted) - sum(n["tried"] for n in tally.values())
    print(f"{sum(n['noticed'] for n in tally.values())} of {len(wanted)} noticed, {wrong} wrong, {untried} not tried")
    return wrong + untried + len(failures) != 0


if __name__ == "__main__":
    sys.exit(main())
