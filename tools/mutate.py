#!/usr/bin/env python3
"""Which tests find a planted fault?

    tools/mutate.py map                                  once: which test executes which function (half an hour)
    tools/mutate.py draw 20 --seed 7 --out /tmp/faults   twenty random faults, a patch each
    tools/mutate.py run /tmp/faults/*.patch              plants each in a copy of the tree and runs the tests that execute it

A fault is a patch (as of `git diff`) that an engineer could have made by mistake.  One that no test finds asks for a test: of the
kind of fault, not of its line.  Red with the patch and green without it is what `run` shows again afterwards.

`run` works on a copy of the checkout that it is called in, changes not yet committed and new files included, so that a new test
counts at once.  Everything lies in build/mutate of that checkout: `rm -r build/mutate` leaves nothing behind.  Results:

    found 03-tail.patch by nvme.stripe (0.4 s)   that test failed or crashed, and passes without the fault;
                                                 (61.0 s, ended): it took far more time or memory than it does
    survived 04-wait.patch (31 tests in 48 s)    no test failed; those that --time has left out are named: run them by hand
    same code 05-order.patch                     the compiler makes the same object files of it: no fault
    does not apply, does not build               mend the patch

"(the compiler warns)" behind a result: `make test`, where warnings are errors, refuses such a fault.  What a failing test printed is
in build/mutate/logs/NAME.txt.  Tests run as root get a /tmp and process numbers of their own (unshare), so that crashed ones leave
nothing and several runs do not meet.  Needs Linux, gcc, gcov-dump, ninja and ctest; ccache is used where it is installed.
"""
import argparse
import collections
import concurrent.futures
import difflib
import fcntl
import hashlib
import json
import os
import pathlib
import queue
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading

sys.dont_write_bytecode = True  # nothing is left beside the sources
from mutate_faults import KINDS, faults_of_file, function_at, functions
from mutate_tree import PRODUCT, Build, Checkout, fail, output, stop

# --- map ---

def gcov_dump(files, *options):
    for at in range(0, len(files), 200):
        process = subprocess.Popen(("gcov-dump", *options, *map(str, files[at:at + 200])), stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True, errors="replace")
        yield from process.stdout
        process.wait()


def read_notes(build):
    """For each object file and function ident of it: the (file, function) pairs whose lines it was compiled from."""
    spans, notes = {}, collections.defaultdict(set)
    wanted, root = None, f"{build.tree}/"
    for line in gcov_dump(sorted(build.build.rglob("*.gcno")), "-l"):
        path, _, rest = line.partition(":")
        if "FUNCTION ident=" in rest:
            wanted = (os.path.relpath(path, build.build).removesuffix(".gcno"), re.search(r"ident=(\d+)", rest)[1])
            continue
        for source, numbers in re.findall(r"`([^']*)':([\d, ]+)", rest):
            name = os.path.normpath(os.path.join(build.build, source)).removeprefix(root)
            if wanted and name.startswith(tuple(f"{folder}/" for folder in PRODUCT)):
                if name not in spans:
                    spans[name] = functions((build.tree / name).read_text())
                notes[wanted].update((name, function_at(spans[name], int(n))) for n in numbers.split(","))
    return notes


def executed(build, notes, prefix):
    """The (file, function) pairs that a test has executed, from the counters that its processes left below prefix."""
    found, ident = set(), None
    below = f"{prefix}{build.build}/"
    for line in gcov_dump(sorted(prefix.rglob("*.gcda"))):
        if "FUNCTION ident=" in line:
            path, _, rest = line.partition(":")
            ident = (path.removeprefix(below).removesuffix(".gcda"), re.search(r"ident=(\d+)", rest)[1])
        elif "COUNTERS arcs" in line and "(all zero)" not in line and ident in notes:
            found |= notes[ident]
    return found


def command_map(arguments):
    checkout = Checkout()
    commit = output("git", "rev-parse", "HEAD", cwd=checkout.root).strip()
    builds = [Build(checkout, checkout.scratch / "map", "--coverage", launcher=False)]
    builds[0].sync()
    tests = builds[0].configure()
    print("mutate: building with coverage", flush=True)
    built = builds[0].ninja((), arguments.j, keep_going=True)
    if built.returncode:
        print(f"mutate: not all is built: {built.stdout[-600:]}", file=sys.stderr)
    notes = read_notes(builds[0])
    if not notes:
        fail(f"{builds[0].build}: no coverage notes (*.gcno): gcc and gcov-dump of one version are needed")
    path, lock = arguments.out or checkout.scratch / "map.json", threading.Lock()
    known = Map(path, checkout)
    known.commit = commit
    wanted = sorted((n for n in tests if re.search(arguments.tests, n)), key=lambda n: (n in known.tests, known.seconds(n)))

    def measure(test):
        runner = Build(checkout, checkout.scratch / "map" / f"run-{threading.get_ident()}")
        runner.tree, runner.build = builds[0].tree, builds[0].build
        prefix = checkout.scratch / "map" / "counters" / test.name
        shutil.rmtree(prefix, ignore_errors=True)
        outcome, seconds, _ = runner.run(test, arguments.limit, {"GCOV_PREFIX": str(prefix)})
        pairs = executed(runner, notes, prefix)
        shutil.rmtree(prefix, ignore_errors=True)
        with lock:
            known.replace(test.name, {"seconds": round(seconds, 2), "outcome": outcome}, pairs)
            known.write(path)
            print(f"{test.name}: {outcome}, {seconds:.1f} s, {len(pairs)} functions", flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.j) as pool:
        list(pool.map(measure, (tests[name] for name in wanted)))


def write_json(path, value):
    part = pathlib.Path(f"{path}.part")
    part.write_text(json.dumps(value))
    part.rename(path)


class Map:
    def __init__(self, path, checkout):
        value = json.loads(path.read_text()) if path.exists() else {"commit": "HEAD", "tests": {}, "covers": {}}
        self.commit, self.covers, self.tests = value["commit"], value["covers"], value["tests"]
        self.changed = checkout.changed_tests(self.commit)

    def write(self, path):
        write_json(path, {"commit": self.commit, "tests": self.tests, "covers": self.covers})

    def replace(self, test, measured, pairs):
        self.tests[test] = measured
        for tests in (tests for functions in self.covers.values() for tests in functions.values()):
            if test in tests:
                tests.remove(test)
        for name, function in pairs:
            self.covers.setdefault(name, {}).setdefault(function, []).append(test)

    def seconds(self, name):
        return self.tests.get(name, {"seconds": 5.0})["seconds"]

    def of_file(self, name, tree, seen):
        """Tests that execute anything of a file; of a header without code, of the files that include it."""
        if name in self.covers:
            return {test for tests in self.covers[name].values() for test in tests}
        seen.add(name)
        users = [n for n in tree if n not in seen and f'#include "{name}"' in tree[n]]
        return set().union(*(self.of_file(user, tree, seen) for user in users))

    def covering(self, changes, tests, tree):
        """Names of tests: those that execute the changed functions, and the others of those files; without any, all."""
        near, far = set(), set()
        for name, function in changes:
            far |= self.of_file(name, tree, set())
            near |= set(self.covers.get(name, {}).get(function, ()))
        if not near | far:
            return set(tests), set()
        changed = {name for name, test in tests.items() if name not in self.tests or test.source() in self.changed}
        near = (near or far) | changed
        return near & set(tests), (far - near) & set(tests)


# --- run ---

class State:
    """What earlier calls learnt: which tests failed last, and which pass on the checkout as it is."""

    def __init__(self, path):
        self.path, self.lock = path, threading.Lock()
        value = json.loads(path.read_text()) if path.exists() else {}
        self.failed, self.digest, self.sound = value.get("failed", []), value.get("digest"), value.get("sound", {})

    def begin(self, digest):
        if self.digest != digest:
            self.digest, self.sound = digest, {}

    def keep(self, test=None, sound=None):
        with self.lock:
            if sound is not None:
                self.sound[test] = sound
            elif test:
                self.failed = [test, *(t for t in self.failed if t != test)][:12]
            write_json(self.path, {"failed": self.failed, "digest": self.digest, "sound": self.sound})


def object_of(entry):
    """The object file of an entry of compile_commands.json; not every CMake names it there ("output")."""
    words = shlex.split(entry["command"]) if "output" not in entry else []
    return os.path.join(entry["directory"], entry["output"] if "output" in entry else words[words.index("-o") + 1])


class Worker(Build):
    def __init__(self, checkout, index, known, state, options):
        super().__init__(checkout, checkout.scratch / f"worker-{index}")
        self.known, self.state, self.options = known, state, options

    def begin(self):
        self.state.begin(self.sync())
        self.tests = self.configure()
        self.text = {name: (self.tree / name).read_text() for name in self.checkout.product()}
        self.objects = collections.defaultdict(list)
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            self.objects[os.path.relpath(entry["file"], self.tree)].append(os.path.relpath(object_of(entry), self.build))

    def hashes(self, objects):
        return [hashlib.sha256((self.build / name).read_bytes()).digest() for name in objects]

    def apply(self, patch, *options):
        command = ("git", "apply", *options, "-p1", str(patch))
        return subprocess.run(command, cwd=self.tree, capture_output=True, text=True,
                              env={**os.environ, "GIT_CEILING_DIRECTORIES": str(self.folder)})

    def judge(self, patch):
        """The line to print about a patch."""
        stat = self.apply(patch, "--numstat")
        names = [line.split("\t")[2] for line in stat.stdout.splitlines()]
        if stat.returncode or not names or self.apply(patch, "--check").returncode:
            return f"does not apply {patch.name}"
        before = {name: (self.tree / name).read_text() if (self.tree / name).exists() else None for name in names}
        objects = [o for name in names for o in self.objects[name]]
        clean = self.ninja(objects) if objects else None
        if clean and clean.returncode:
            return f"does not build {patch.name}: nor does the checkout without it: {error_of(clean.stdout)}"
        plain = self.hashes(objects)
        try:
            self.apply(patch)
            built = self.ninja(objects) if objects else None
            if built and built.returncode:
                return f"does not build {patch.name}: {error_of(built.stdout)}"
            if objects and all(n.endswith((".c", ".cu")) for n in names) and plain == self.hashes(objects):
                return f"same code {patch.name}"
            warns = " (the compiler warns)" if built and "warning:" in built.stdout else ""
            return self.hunt(patch, before) + warns
        finally:
            self.revert(before)

    def revert(self, before):
        for name, text in before.items():
            if text is None:
                (self.tree / name).unlink(missing_ok=True)
            else:
                (self.tree / name).write_text(text)

    def order(self, before):
        changes = set()
        for name, text in before.items():
            old, spans = (text or "").split("\n"), functions(text or "")
            new = (self.tree / name).read_text().split("\n") if (self.tree / name).exists() else []
            blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
            lines = [n for tag, first, last, _, _ in blocks if tag != "equal" for n in range(first + 1, max(last, first + 1) + 1)]
            changes |= {(name, function_at(spans, line)) for line in lines}
        near, far = self.known.covering(changes, self.tests, self.text)
        weight = {name: 0.2 for name in self.state.failed}  # a test that failed lately comes earlier than its length says
        return [*sorted(near, key=lambda n: self.known.seconds(n) * weight.get(n, 1)), *sorted(far, key=self.known.seconds)]

    def hunt(self, patch, before):
        order, ran, spent, size = self.order(before), 0, 0.0, 3
        while order:
            batch, order, size = order[:size], order[size:], size * 2
            built = self.ninja(set().union(*(self.tests[n].targets for n in batch)))
            if built.returncode:
                return f"does not build {patch.name}: {error_of(built.stdout)}"
            for at, name in enumerate(batch):
                if ran and spent + self.known.seconds(name) > self.options.time:
                    left = [*batch[at:], *order]
                    names = ", ".join(left[:4]) + f" and {len(left) - 4} others" * (len(left) > 4)
                    return f"survived {patch.name} ({ran} tests in {spent:.0f} s; left out by --time: {names})"
                outcome, seconds, text = self.run(self.tests[name], self.limit(name))
                ran, spent = ran + 1, spent + seconds
                if outcome in ("failed", "ended") and self.sound(name, patch, before):
                    self.state.keep(name)
                    (self.checkout.scratch / "logs").mkdir(exist_ok=True)
                    (self.checkout.scratch / "logs" / f"{patch.stem}.txt").write_text(text)
                    return f"found {patch.name} by {name} ({seconds:.1f} s{', ended' * (outcome == 'ended')})"
        return f"survived {patch.name} ({ran} tests in {spent:.0f} s)"

    def limit(self, name):
        return 30 + 6 * self.known.seconds(name)

    def sound(self, name, patch, before):
        """Does the test pass without the fault?  Asked once for each test that fails and each state of the checkout."""
        if name not in self.state.sound:
            self.revert(before)
            passes = self.ninja(self.tests[name].targets).returncode == 0 and self.run(self.tests[name], self.limit(name))[0] == "passed"
            self.state.keep(name, passes)
            if not passes:
                print(f"mutate: {name} does not pass without any fault: left out", file=sys.stderr, flush=True)
            self.apply(patch)
            self.ninja(self.tests[name].targets)
        return self.state.sound[name]


def error_of(text):
    lines = text.splitlines()
    return next((line.strip() for line in lines if "error" in line), lines[-1] if lines else "no output")


def command_run(arguments):
    checkout = Checkout()
    map_path = pathlib.Path(arguments.map) if arguments.map else checkout.scratch / "map.json"
    if not map_path.exists():
        print(f"mutate: {map_path}: no map: every test is run for every fault (`tools/mutate.py map` makes one)", file=sys.stderr)
    known, state = Map(map_path, checkout), State(checkout.scratch / "state.json")
    waiting, lines, lock = queue.Queue(), [], threading.Lock()
    for patch in arguments.patch:
        waiting.put(pathlib.Path(patch).resolve(strict=True))
    workers = [free_worker(checkout, known, state, arguments) for _ in range(min(arguments.j, len(arguments.patch)))]

    def work(worker):
        while not waiting.empty():
            try:
                patch = waiting.get_nowait()
            except queue.Empty:
                return
            line = worker.judge(patch)
            with lock:
                lines.append(line)
                print(line, flush=True)

    for worker in workers:
        worker.begin()
    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(work, workers))
    count = collections.Counter(re.match(r"found|survived|same code|does not \w+", line)[0] for line in lines)
    print("mutate: " + ", ".join(f"{number} {what}" for what, number in sorted(count.items())))
    return 1 if count["survived"] else 0


def free_worker(checkout, known, state, options, held=[]):
    """The first worker's folder that no other call uses now."""
    for index in range(64):
        lock = open(checkout.scratch / f"worker-{index}.lock", "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        held.append(lock)
        return Worker(checkout, index, known, state, options)
    fail(f"{checkout.scratch}: all workers are in use")


# --- draw ---

def command_draw(arguments):
    checkout, chance = Checkout(), random.Random(arguments.seed)
    under = tuple(folder.strip("/") + "/" for folder in arguments.under or PRODUCT)
    texts = {n: (checkout.root / n).read_text() for n in checkout.product() if n.startswith(under) or n in arguments.under}
    places = {name: faults for name, text in texts.items() if (faults := faults_of_file(text))}
    if not places:
        fail(f"{' '.join(under)}: no function of product code is there")
    arguments.out.mkdir(parents=True, exist_ok=True)
    drawn = set()
    while len(drawn) < arguments.count:
        name = chance.choices(list(places), [len(lines) for lines in places.values()])[0]
        number = chance.choice(list(places[name]))
        kind = chance.choice(sorted({fault[0] for fault in places[name][number]}))
        fault = chance.choice([f for f in places[name][number] if f[0] == kind])
        if (name, number, fault) in drawn:
            continue
        drawn.add((name, number, fault))
        _, first, last, become = fault
        old = texts[name].splitlines(keepends=True)
        new = list(old)
        new[number] = old[number][:first] + become + old[number][last:]
        patch = arguments.out / f"{len(drawn):03}-{kind}-{pathlib.Path(name).stem}.patch"
        patch.write_text("".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")))
    print(f"mutate: {len(drawn)} faults in {arguments.out}, seed {arguments.seed}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("map", help="run each test with coverage and keep which functions it executes")
    one.add_argument("--tests", default="", metavar="REGEX", help="only these; what the map has of others stays")
    one.add_argument("-j", type=int, default=2, metavar="N", help="tests at once (2)")
    one.add_argument("--limit", type=float, default=400, metavar="SECONDS", help="for one test (400)")
    one.add_argument("--out", type=pathlib.Path, metavar="FILE", help="build/mutate/map.json otherwise")
    one.set_defaults(do=command_map)
    two = commands.add_parser("run", help="plant each fault and run the tests that execute it, until one fails")
    two.add_argument("patch", nargs="+", metavar="PATCH")
    two.add_argument("-j", type=int, default=1, metavar="N", help="faults at once, each in a copy of its own (1)")
    two.add_argument("--time", type=float, default=180, metavar="SECONDS", help="of tests for one fault (180)")
    two.add_argument("--map", metavar="FILE", help="build/mutate/map.json otherwise; that of another checkout will do")
    two.set_defaults(do=command_run)
    three = commands.add_parser("draw", help=f"write random faults of classic kinds: {', '.join(KINDS)}")
    three.add_argument("count", type=int, metavar="N")
    three.add_argument("--under", action="append", default=[], metavar="DIR", help="only below it, or this file; may be given several times")
    three.add_argument("--seed", type=int, default=1, metavar="S")
    three.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR")
    three.set_defaults(do=command_draw)
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    sys.exit(arguments.do(arguments))


if __name__ == "__main__":
    main()
