#!/usr/bin/env python3
"""test_kill_ranks.py STRATA [KILLS [SEED [RANKS]]] - kill -9 of a random rank at random instants of a run that saves and resumes.

After each kill the other ranks must end by themselves, with exit code 4 and a sentence that names a rank, and leave no swap file;
then all are started again with --resume auto.  In the end the digests are those of a run that was never killed.  A kill that comes
after a rank's end counts as none.  Prints a line for each kill.  Exit code 1: something was wrong.  The instants are what is tested: here a
test sleeps."""
import os
import random
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

    def start(self, *more):
        port = free_port()
        command = [self.strata, "train", "--model", "nano", "--data", self.scratch + "/data.bin", "--seq-len", "32", "--max-steps",
                   str(STEPS), "--grad-accum", "2", "--threads", "1", "--nvme", self.scratch + "/nvme", "--set", STATE,
                   "--set", "strata.cache=0", "--set", "zero_optimization.stage=3", "--machine", self.scratch + "/machine.json", "--device-memory", "100MiB",
                   "--host-memory", "400MiB", "--quiet", "--digest", *more]
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


def main():
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
