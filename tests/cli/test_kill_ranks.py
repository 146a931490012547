#!/usr/bin/env python3
"""test_kill_ranks.py STRATA [KILLS [SEED [RANKS [LAUNCHER]]]] - kill -9 of a random rank at random instants of a run that saves and resumes.

After each kill the other ranks must end by themselves, with exit code 4 and a sentence that names a rank, and leave no swap file;
then all are started again with --resume auto.  In the end the digests are those of a run that was never killed.  A kill that comes
after a rank's end counts as none.  Prints a line for each kill.  Exit code 1: something was wrong.  The instants are what is tested: here a
test sleeps.

With LAUNCHER (launch, which is strata's own, mpirun, torchrun, deepspeed) that starts the ranks: so many times each Ctrl-C to its
group, SIGTERM to it (of deepspeed, which does not pass it on, to its process that starts the ranks), and kill -9 of a rank or of strata launch.  Where a signal has asked, the run is saved and says so; then nothing
is left: no process, no file beside those of the run, no shared memory.  Exit code 77: there is no such launcher here."""
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

STEPS, WAIT = 60, 60
STATE = "zero_optimization.offload_optimizer.device=nvme"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


class Soak:
    def __init__(self, strata, ranks, scratch):
        self.strata, self.ranks, self.scratch = os.path.abspath(strata), ranks, scratch
        os.mkdir(scratch + "/nvme")
        with open(scratch + "/text.txt", "wb") as file:
            file.write(bytes(random.Random(1).choices(b"abcdefgh qrst.", k=20000)))
        subprocess.run([self.strata, "tokens", scratch + "/text.txt", "--out", scratch + "/data.bin"], check=True, capture_output=True)
        with open(scratch + "/machine.json", "w") as file:
            file.write('{"name":"test","matmul_flops":1e11,"upload":1e10,"download":1e10,"read":1e9,"write":1e9,"mixed":1e9,"update":1e9}')

    def command(self, *more):
        return [self.strata, "train", "--model", "nano", "--data", self.scratch + "/data.bin", "--seq-len", "32", "--max-steps",
                   str(STEPS), "--grad-accum", "2", "--threads", "1", "--nvme", self.scratch + "/nvme", "--set", STATE,
                   "--set", "strata.cache=0", "--set", "zero_optimization.stage=3", "--machine", self.scratch + "/machine.json", "--device-memory", "100MiB",
                   "--host-memory", "400MiB", "--quiet", "--digest", *more]

    def start(self, *more):
        port, command = free_port(), self.command(*more)
        env = {**os.environ, "WORLD_SIZE": str(self.ranks), "LOCAL_WORLD_SIZE": str(self.ranks), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": port}
        return [subprocess.Popen(command, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True) for rank in range(self.ranks)]

    def end(self, processes):
        """(exit code, text) of each; a rank that hangs is killed and has the code None."""
        ended, limit = [], time.monotonic() + WAIT
        for process in processes:
            try:
                text = process.communicate(timeout=max(0.1, limit - time.monotonic()))[0]
                ended.append((process.returncode, text))
            except subprocess.TimeoutExpired:
                process.kill()
                ended.append((None, process.communicate()[0]))
        return ended

    def whole(self, *more):
        """Digests, and the seconds that a run takes."""
        began = time.monotonic()
        ended = self.end(self.start(*more))
        if any(code != 0 for code, _ in ended):
            sys.exit(f"test_kill_ranks: a run that nobody kills: {ended}")
        return [line for line in ended[0][1].splitlines() if "_digest" in line], time.monotonic() - began

    def swaps(self):
        """Ranks that have left files: each has a directory of its own."""
        return sum(bool(names) for _, _, names in os.walk(self.scratch + "/nvme"))

    def kill(self, rnd, seconds):
        """What is wrong, and what to say; None: nobody was killed."""
        victim, instant = rnd.randrange(self.ranks), rnd.random() * seconds
        processes = self.start("--save", self.scratch + "/save", "--save-every", "2", "--resume", "auto")
        time.sleep(instant)
        if processes[victim].poll() is not None:
            done = self.end(processes)
            return ([] if all(code == 0 for code, _ in done) else [str(done)]), None
        processes[victim].send_signal(signal.SIGKILL)
        ended = self.end(processes)
        wrong = []
        for rank, (code, text) in enumerate(ended):
            if rank == victim:
                continue
            if code not in (0, 4) or (code == 4 and "rank" not in text):
                wrong.append(f"rank {rank}: exit code {code}: {text[-500:]}")
        if self.swaps() > 1:
            wrong.append(f"{self.swaps()} ranks have left swap files")
        others = [text.strip().splitlines()[-1] if text.strip() else "" for rank, (_, text) in enumerate(ended) if rank != victim]
        return wrong, f"rank {victim} after {instant:.2f} s: codes {[code for code, _ in ended]}: {others[0][:160]}"


class Launched(Soak):
    """Runs whose ranks a launcher starts."""

    def __init__(self, strata, ranks, scratch, launcher):
        super().__init__(strata, ranks, scratch)
        self.launcher, count = launcher, str(ranks)
        self.line = {
            "launch": lambda: [self.strata, "launch", "-n", count],
            "mpirun": lambda: ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "odls_base_sigkill_timeout", "2", "-n", count, self.strata],
            "torchrun": lambda: ["torchrun", "--no-python", "--nproc-per-node", count, "--master-port", free_port(), self.strata],
            "deepspeed": lambda: ["deepspeed", "--no_python", "--num_gpus", count, "--master_port", free_port(), self.strata],
        }[launcher]
        self.env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "DS_ACCELERATOR": "cpu"}

    def processes(self):
        """Ranks of this run that live."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if b"train" in words[1:3] and (self.scratch + "/data.bin").encode() in words:
                found.append(int(pid))
        return found

    def starter(self, launcher):
        """The process that hears SIGTERM for the ranks.  deepspeed on one node is two: the first dies of it, and the run goes on."""
        if self.launcher != "deepspeed":
            return launcher.pid
        with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children", encoding="ascii") as file:
            return int(file.read().split()[0])

    def end_rest(self, launcher):
        """Of a test that went wrong."""
        for pid in self.processes() + [launcher.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def await_checkpoint(self, launcher, log):
        """The first: from then on there is something to keep.  deepspeed takes half a minute to start on a busy machine."""
        limit = time.monotonic() + 5 * WAIT
        while not os.path.lexists(self.scratch + "/save/latest") and time.monotonic() < limit:
            time.sleep(0.02)
        if not os.path.lexists(self.scratch + "/save/latest"):
            self.end_rest(launcher)
            with open(log, encoding="utf-8", errors="replace") as file:
                sys.exit(f"test_kill_ranks: nothing was saved in {5 * WAIT} s: {file.read()}")

    def left(self, killed):
        """What is there that should not be.  What a killed rank leaves on the drive the next run removes."""
        limit = time.monotonic() + WAIT
        while self.processes() and time.monotonic() < limit:
            time.sleep(0.02)
        wrong = [f"process {pid} is left" for pid in self.processes()]
        wrong += [f"/dev/shm/{name} is left" for name in os.listdir("/dev/shm") if "strata" in name]
        wrong += [f"{name} is left" for name in os.listdir(self.scratch) if name not in ("nvme", "text.txt", "data.bin", "machine.json", "save", "log")]
        wrong += [f"{self.swaps()} ranks have left swap files"] if self.swaps() > killed else []
        return wrong

    def end_by(self, number, rnd):
        """What is wrong, and what to say, of one run that ends by this signal."""
        log, save = self.scratch + "/log", self.scratch + "/save"
        command = self.line() + self.command("--save", save, "--save-every", "2", "--max-steps", "1000000")[1:]
        with open(log, "wb") as file:
            launcher = subprocess.Popen(command, env=self.env, cwd=self.scratch, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
        self.await_checkpoint(launcher, log)
        time.sleep(rnd.random() * 0.3)
        victim = launcher.pid
        if number == signal.SIGKILL:
            victim = rnd.choice(self.processes() + [launcher.pid] * (self.launcher == "launch"))
        if number == signal.SIGINT:
            os.killpg(launcher.pid, number)
        else:
            os.kill(self.starter(launcher) if number == signal.SIGTERM else victim, number)
        try:
            code = launcher.wait(WAIT)
        except subprocess.TimeoutExpired:
            self.end_rest(launcher)
            code = launcher.wait()
        rank_killed = number == signal.SIGKILL and victim != launcher.pid
        wrong = self.left(rank_killed)
        self.end_rest(launcher)
        with open(log, encoding="utf-8", errors="replace") as file:
            text = file.read()
        wrong += [] if code != 0 else ["exit code 0"]
        wrong += [] if ("rank " in text if rank_killed else "--resume goes on from" in text) else [f"it is not said what was kept: {text[-800:]}"]
        verified = subprocess.run([self.strata, "verify", save], capture_output=True, text=True)
        wrong += [] if verified.returncode == 0 else [verified.stderr]
        shutil.rmtree(save)
        shutil.rmtree(self.scratch + "/nvme")
        os.mkdir(self.scratch + "/nvme")
        return wrong, f"{signal.Signals(number).name} to {'the launcher' if victim == launcher.pid else 'a rank'}: exit code {code}"


def under(launcher, kills, seed, ranks):
    if launcher != "launch" and shutil.which(launcher) is None:
        print(f"no {launcher} here")
        return 77
    rnd, bad = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as scratch:
        soak = Launched(sys.argv[1], ranks, scratch, launcher)
        for i in range(kills):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                wrong, said = soak.end_by(number, rnd)
                bad += len(wrong)
                print(f"{launcher} {i + 1}: {said}", *wrong, sep="\n  WRONG ", flush=True)
    print(f"{3 * kills} ends of {ranks} ranks under {launcher}, seed {seed}: {bad} wrong")
    return 1 if bad else 0


def main():
    if len(sys.argv) > 5:
        return under(sys.argv[5], *(int(word) for word in sys.argv[2:5]))
    kills, seed, ranks = (int(word) for word in (sys.argv[2:] + ["3", "1", "2"][len(sys.argv) - 2:]))
    rnd, bad, done, tries = random.Random(seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        soak = Soak(sys.argv[1], ranks, scratch)
        want, seconds = soak.whole()
        while done < kills and tries < 4 * kills:
            tries += 1
            wrong, said = soak.kill(rnd, seconds)
            if said is None:  # the run is over: its end counts, and another one begins
                have, _ = soak.whole("--save", scratch + "/save", "--resume", "auto")
                bad += have != want
                subprocess.run(["rm", "-rf", scratch + "/save"], check=True)
            done += said is not None
            bad += len(wrong)
            if said is not None:
                print(f"kill {done}: {said}", *wrong, sep="\n  WRONG ", flush=True)
        have, _ = soak.whole("--save", scratch + "/save", "--save-every", "2", "--resume", "auto")
        left = soak.swaps()
        print(f"{done} kills of one of {ranks} ranks, seed {seed}: {bad} wrong; digests {'alike' if have == want else 'differ'}; "
              f"{left} ranks have left swap files")
        return 1 if bad or have != want or left or done < kills else 0


if __name__ == "__main__":
    sys.exit(main())
