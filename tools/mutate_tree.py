"""The checkout that tools/mutate.py is called in, copies of it that are built, and the tests that run in them."""
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

PRODUCT = ("core", "offload", "nvme", "kernels", "recipes", "text", "model", "run", "api", "bench", "cli")
SOURCES = (".c", ".h", ".cu", ".cuh", ".inc")
MEMORY_BYTES = 6 << 30  # of one test and all that it began: watched, since strata counts a limit as the machine's memory
FILE_BLOCKS = 16 << 20  # largest file of one test, in blocks of 512 bytes
NICE = ("nice", "-n", "5")

# $0: what /tmp is to be, or nothing.  The shell stays, as first process of its own process numbers: with it ends all that it began.
LIMITED = f'ulimit -S -c 0; ulimit -S -f {FILE_BLOCKS}; [ -z "$0" ] || mount --bind "$0" /tmp || exit 99; "$@"; exit $?'
UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def fail(sentence):
    sys.exit(f"mutate: error: {sentence}")


def output(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", **options)
    if done.returncode:
        fail(f"{' '.join(map(str, command[:6]))}: {done.stderr.strip()[-2000:] or done.stdout.strip()[-2000:]}")
    return done.stdout


LIVE = set()  # builds and tests that run now, each the first of a session


def start(command, **options):
    process = subprocess.Popen(command, stderr=subprocess.STDOUT, start_new_session=True, **options)
    LIVE.add(process)
    return process


def end(process):
    """Ends what is left of a process and of those that it began: unshare takes its process numbers along, without it the session goes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    LIVE.discard(process)


def stop(number, _):
    """For a signal.  What is planted stays in the copy, and goes when the next call makes it equal to the checkout."""
    for process in list(LIVE):
        end(process)
    os._exit(128 + number)


class Checkout:
    """The checkout that the tool is called in, and its scratch folder."""

    def __init__(self):
        self.root = pathlib.Path(output("git", "rev-parse", "--show-toplevel").strip())
        self.scratch = self.root / "build" / "mutate"
        self.scratch.mkdir(parents=True, exist_ok=True)

    def files(self):
        names = output("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=self.root).split("\0")
        return sorted(name for name in set(names) if (self.root / name).is_file())

    def product(self):
        return [n for n in self.files() if n.split("/")[0] in PRODUCT and n.endswith(SOURCES)]

    def changed_tests(self, commit):
        """Names like engine/test_save of tests that are new or other than at commit."""
        known = subprocess.run(("git", "diff", "--name-only", commit, "--", "tests"), cwd=self.root, capture_output=True, text=True)
        new = output("git", "ls-files", "-o", "--exclude-standard", "--", "tests", cwd=self.root)
        return {n.removeprefix("tests/").rsplit(".", 1)[0] for n in (known.stdout + new).split()}


class Test:
    def __init__(self, entry, command, build, targets):
        values = {p["name"]: p["value"] for p in entry["properties"]}
        self.name, self.command, self.prints = entry["name"], command, values.get("PASS_REGULAR_EXPRESSION")
        self.folder, self.tree = values.get("WORKING_DIRECTORY", str(build)), pathlib.Path(build).parent / "tree"
        self.environment = dict(word.split("=", 1) for word in values.get("ENVIRONMENT", []))
        for word in values.get("ENVIRONMENT_MODIFICATION", []):
            name, change = word.split("=", 1)
            self.environment[name] = change.removeprefix("set:")
        words = [*self.command, *self.environment.values()]
        self.targets = {os.path.relpath(w, build) for w in words if w.startswith(f"{build}/")} & targets

    def source(self):
        """engine/test_save of `test_engine save`, engine/test_figures of the program test_engine_figures."""
        folder, _, unit = self.name.partition(".")
        program = next((t for t in self.targets if "/test_" in t), "").rsplit("/", 1)[-1]
        units = [*self.command[1:2], program.removeprefix(f"test_{folder}_"), unit]
        return next((f"{folder}/test_{u}" for u in units if list(self.tree.glob(f"tests/{folder}/test_{u}.c*"))), self.name)


class Build:
    """A copy of the checkout with a build folder; tests run in it one at a time."""

    def __init__(self, checkout, folder, flags="", launcher=True):
        self.checkout, self.folder, self.flags, self.launcher = checkout, folder, flags, launcher
        self.tree, self.build, self.tmp = folder / "tree", folder / "build", folder / "tmp"
        for path in (self.tree, self.tmp):
            path.mkdir(parents=True, exist_ok=True)
        isolated = subprocess.run((*UNSHARE, "true"), capture_output=True).returncode == 0
        self.isolated = isolated and not str(self.tree).startswith("/tmp/")

    def sync(self):
        """Makes the copy equal to the checkout, writing only what differs; returns a digest of it all."""
        digest = hashlib.sha256()
        files = self.checkout.files()
        for name in files:
            source, copy = self.checkout.root / name, self.tree / name
            data = source.read_bytes()
            digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
            if not copy.is_file() or copy.read_bytes() != data:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy)
        for copy in list(self.tree.rglob("*")):
            if copy.is_file() and str(copy.relative_to(self.tree)) not in set_of(tuple(files)):
                copy.unlink()
        return digest.hexdigest()

    def configure(self):
        flags = f"-O1 {self.flags}".strip()
        options = ["-DCMAKE_BUILD_TYPE=Mutate", f"-DCMAKE_C_FLAGS_MUTATE={flags}", f"-DCMAKE_CXX_FLAGS_MUTATE={flags}",
                   "-DSTRATA_CUDA=OFF", "-DSTRATA_WERROR=OFF"]
        for language in ("C", "CXX"):
            tool = "ccache" if self.launcher and shutil.which("ccache") else ""
            options.append(f"-DCMAKE_{language}_COMPILER_LAUNCHER={tool}")
        output("cmake", "-G", "Ninja", "-S", self.tree, "-B", self.build, *options, env=self.environment())
        self.targets = {line.rsplit(": ", 1)[0] for line in output("ninja", "-C", self.build, "-t", "targets", "all").splitlines()}
        listed = json.loads(output("ctest", "--test-dir", self.build, "--show-only=json-v1", "-L", "^(unit|corners|fuzz)$"))["tests"]
        commands = {}  # ctest itself lists that of no program that is not yet built
        for path in self.build.rglob("CTestTestfile.cmake"):
            for name, words in re.findall(r'^add_test\((?:\[=\[|")?([^\s"\]]+)(?:\]=\]|")? (.*)\)$', path.read_text(), re.M):
                commands[name] = shlex.split(words)
        tests = [Test(entry, commands[entry["name"]], str(self.build), self.targets) for entry in listed]
        return {test.name: test for test in tests if test.targets}

    def environment(self):
        own = {"CCACHE_BASEDIR": str(self.folder), "CCACHE_NOHASHDIR": "1"}
        return {**own, **{k: v for k, v in os.environ.items() if k not in ("CC", "CXX", "CMAKE_C_COMPILER_LAUNCHER")}}

    def ninja(self, targets, jobs=1, keep_going=False):
        command = (*NICE, "ninja", "-C", str(self.build), f"-j{jobs}", *(("-k", "0") if keep_going else ()), *sorted(targets))
        process = start(command, stdout=subprocess.PIPE, text=True, errors="replace", env=self.environment())
        printed = process.communicate()[0]
        LIVE.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, printed)

    def run(self, test, limit, environment=()):
        """Outcome (passed, skipped, failed, ended), seconds, and what it printed."""
        command = (*NICE, *(UNSHARE if self.isolated else ()), "sh", "-c", LIMITED, str(self.tmp) if self.isolated else "", *test.command)
        environment = {**os.environ, **({} if self.isolated else {"TMPDIR": str(self.tmp)}), **test.environment, **dict(environment)}
        begin = time.monotonic()
        with open(self.folder / "printed", "wb+") as printed:
            process = start(command, cwd=test.folder, env=environment, stdin=subprocess.DEVNULL, stdout=printed)
            code = wait(process, limit)
            seconds = time.monotonic() - begin
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - 20000))
            text = printed.read().decode(errors="replace")
        shutil.rmtree(self.tmp, ignore_errors=True)
        self.tmp.mkdir(exist_ok=True)
        if test.prints and code is not None:
            code = 0 if any(re.search(pattern, text) for pattern in test.prints) else 1
        return "ended" if code is None else {0: "passed", 77: "skipped"}.get(code, "failed"), seconds, text


def wait(process, limit):
    """The exit code; None where it took too long or too much memory and was ended."""
    last, code = time.monotonic() + limit, None
    while code is None and time.monotonic() < last and resident_bytes(process.pid) < MEMORY_BYTES:
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            pass
    end(process)
    return code


def resident_bytes(first):
    """Of a process and all that descend from it."""
    parents, pages = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        parents[int(path.parent.name)], pages[int(path.parent.name)] = int(fields[1]), int(fields[21])
    ours = {first}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(pages.get(pid, 0) for pid in ours) * os.sysconf("SC_PAGE_SIZE")


def set_of(names, kept={}):
    if kept.get("of") != names:
        kept.update(of=names, set=frozenset(names))
    return kept["set"]
