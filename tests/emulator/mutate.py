#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Changes one thing at a time in the kernels and runs their tests on the emulated device.

    mutate.py [--kind KIND,...] [--seeds N] [--tsan] [--only FILE[:LINE],...] [--unlisted] [--sample N [--seed S]]
              [--resume] [--jobs N] [--minutes M] [--timeout S] [FOLDER]

    kind     what is changed                                            modes of the tests, in turn (planting.py)
    sync     a statement that orders threads or waits is taken out      plain, limit, tsan; --tsan: only that
    fence    __threadfence() is taken out                               weak
    order    acquire and release become relaxed                         weak; a cluster's barrier: tsan
    stride   a loop over the grid's stride takes one trip               limit
    shared   a store through shared_store_*() is taken out              plain
    bound    < becomes <=, <= becomes <                                 plain, asan

Builds the tests in FOLDER (default build/mutate). A mutant is noticed when a test of an op whose kernels include the
file fails at one of the seeds. A mutant that is not noticed must be listed in mutations.txt beside this file, with the
reason, and one that is noticed must not be; --unlisted leaves listed ones out. --sample takes N of all mutants, chosen
by S; --jobs tries N at a time; --minutes begins none later than that; --resume goes on where an earlier run in FOLDER
with the same arguments ended. A tally per kind comes last; the exit status is 1 if a mutant is unnoticed and not listed, or
listed and noticed, or was not tried."""
import argparse, collections, hashlib, itertools, json, pathlib, queue, random, re, sys, threading, time
from planting import Tests, planted, root

# a statement that orders threads or waits; the arguments hold no semicolon
calls = (r"__syncthreads|__syncwarp|mbar_wait|mbar_wait_cluster|mbar_init_fence|cluster_wait|bulk_fence"
         r"|pdl_wait|(?:barrier_sync|barrier_arrive|copy_async_wait|bulk_wait|bulk_wait_read)<[^>]*>")
modes_of = {"sync": ["plain", "limit", "tsan"], "fence": ["weak"], "order": ["weak"], "stride": ["limit"],
            "shared": ["plain"], "bound": ["plain", "asan"]}    # in turn, the cheapest first: few need another
patterns = {
    "sync": r"\b(" + calls + r")\([^;]*\);",
    "fence": r"\b__threadfence\(\);",
    "order": r"\b(?:atomic_inc_acq_rel|store_release_u32|load_acquire_u32|cluster_arrive)\(",
    "stride": r"\b\w+ \+= [^;%/]*\b(?:gridDim\.[xyz]|num_blocks)\b[^;)]*(?=[;)])",
    "shared": r"\bshared_store_\w+\([^;]*\);",
    "bound": r"(?<=[\w)\]] )<=?(?= [\w(-])",
}
relaxed = {"atomic_inc_acq_rel(": "atomic_inc_relaxed(", "store_release_u32(": "store_relaxed_u32(",
           "load_acquire_u32(": "load_relaxed_u32(", "cluster_arrive(": "cluster_arrive_relaxed("}


def blanked(pattern, text, flags):
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=flags)


def mutants(text, kind):
    """(line, the statement, the text with it changed) for each."""
    code = blanked(r"/\*.*?\*/|//[^\n]*", text, re.S)
    if kind == "bound":                 # what a compiler checks is none, nor is a hint of how many blocks an SM holds
        code = blanked(r"^#[^\n]*|static_assert\([^;]*;|template <[^;{]*?>|enum \{ MIN_BLOCKS[^;]*;", code, re.M)
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
        yield line, what, text[:begin] + new + text[m.end():]


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
    parser.add_argument("--only", default="", help="src/x/y.cu or src/x/y.cu:12, separated by commas")
    parser.add_argument("--unlisted", action="store_true", help="leave out those in mutations.txt")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--timeout", type=float, default=600, help="seconds after which a test hangs")
    args = parser.parse_args()
    only = [o for o in args.only.split(",") if o]
    kinds = list(modes_of) if args.kind == "all" else args.kind.split(",")
    folder = pathlib.Path(args.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / "journal.json"
    done = json.loads(journal.read_text()) if args.resume and journal.exists() else {}

    accepted = {}                       # (file, kind, which of its statements): reason
    for line in pathlib.Path(__file__).with_name("mutations.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            file, which, reason = line.split(None, 2)
            kind, which = which.split(":") if ":" in which else ("sync", which)
            accepted[file, kind, int(which)] = reason

    wanted = []
    for path in sorted([*root.glob("src/*/*.cu"), *root.glob("src/**/*.cuh")]):
        name = path.relative_to(root).as_posix()
        if name.startswith("src/cuda/"):
            continue
        for kind in kinds:
            for which, (line, what, text) in enumerate(mutants(path.read_text(), kind)):
                if (not only or name in only or f"{name}:{line}" in only) and \
                        not (args.unlisted and (name, kind, which) in accepted):
                    wanted.append((name, kind, which, line, what, text))
    if args.sample and args.sample < len(wanted):
        chosen = sorted(random.Random(args.seed).sample(range(len(wanted)), args.sample))
        wanted = [wanted[i] for i in chosen]

    tests, programs = Tests(folder), {name: programs_of(name) for name, *_ in wanted}

    def modes(kind, what):
        is_shared = kind == "order" and what.startswith("cluster")      # orders shared memory, which TSan watches
        return ["tsan"] if args.tsan or is_shared else modes_of[kind]

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

    tally, wrong, end = collections.defaultdict(collections.Counter), 0, time.monotonic() + 60 * args.minutes

    def key_of(name, kind, which, line, what, text):    # of this text: a journal may be older than a kernel
        return f"{name} {kind} {which} {what} {hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def report(name, kind, which, line, what, text):
        nonlocal wrong
        seen, reason = done[key_of(name, kind, which, line, what, text)], accepted.get((name, kind, which))
        tally[kind].update(tried=1, noticed=int(bool(seen)), accepted=int(bool(reason and not seen)))
        if bool(seen) == bool(reason) and not (seen and args.tsan):
            wrong += 1
        verdict = seen + "   BUT IT IS IN mutations.txt" * bool(seen and reason and not args.tsan) if seen else \
            f"not noticed ({reason})" if reason else "NOT NOTICED"
        print(f"{name}:{line:<4} {kind:6} {what[:60]:62} {verdict}", flush=True)

    todo, lock, failures = queue.SimpleQueue(), threading.Lock(), []
    for mutant in wanted:
        if key_of(*mutant) in done:
            report(*mutant)
        else:
            todo.put(mutant)

    def first_seen(name, kind, what, text):
        with planted(name, text) as fault:
            for mode, program, seed in itertools.product(modes(kind, what), programs[name], range(args.seeds)):
                require_pass(mode, program)
                if seen := tests.run(mode, program, seed, fault=fault, timeout=args.timeout):
                    return f"{mode}, seed {seed}: {seen[:100]}"
        return ""

    def work():
        try:
            while time.monotonic() < end and not failures:
                name, kind, which, line, what, text = mutant = todo.get_nowait()
                seen = first_seen(name, kind, what, text)
                with lock:
                    done[key_of(*mutant)] = seen
                    journal.write_text(json.dumps(done))
                    report(*mutant)
        except queue.Empty:
            pass
        except Exception as failure:
            failures.append(failure)

    workers = [threading.Thread(target=work) for _ in range(args.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        sys.exit(str(failures[0]))
    for kind, n in tally.items():
        print(f"{kind}: {n['noticed']} of {n['tried']} noticed, {n['accepted']} accepted, "
              f"{n['tried'] - n['noticed'] - n['accepted']} not noticed")
    untried = len(wanted) - sum(n["tried"] for n in tally.values())
    print(f"{sum(n['noticed'] for n in tally.values())} of {len(wanted)} noticed, {wrong} wrong, {untried} not tried")
    return wrong + untried != 0


if __name__ == "__main__":
    sys.exit(main())
