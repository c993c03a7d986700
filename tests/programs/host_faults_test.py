"""Runs trials in which a training with the hierarchical backend loses a rank, a launcher or a host's link.

    python3 host_faults_test.py FSDPRUN FAULT_TRIALS --trials 200

Two hosts, which are network namespaces, have two ranks and a launcher each. A rank that is drawn at random kills itself
or its launcher, or cuts its host's link, at a fault point of the library that is drawn, too. A trial fails if a
launcher or a rank hangs, if a rank ends with other numbers than without a fault, if a survivor does not name the lost
rank, or if something is left behind. The same seed gives the same trials. Exits with 77, which ctest reports as
skipped, if namespaces are not permitted.
"""

import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid

for folder in ("launcher", "process"):
    sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / folder))

from fsdprun_case import FSDPRUN, MARKER, marked_processes  # noqa: E402  (takes the first argument)
from comm_hosts_test import Hosts, NOT_PERMITTED, ip, is_permitted  # noqa: E402

FAULTS = ("rank", "launcher", "link")
HOSTS, RANKS_PER_HOST = 2, 2
TIMEOUT_MS = 3000
HEARTBEAT_S = 4
# Time limit of a trial. It covers all timeouts of ranks and launchers, one after the other.
LIMIT_S = 90


class Trial:
    """Runs the launchers of all hosts, until all processes have ended."""

    def __init__(self, program, number, fault=None):
        self.marker = uuid.uuid4().hex
        self.hosts = Hosts(HOSTS, f"t{number}")
        self.left = []
        with tempfile.TemporaryDirectory() as folder:
            try:
                launchers = [self.start(program, host, folder, fault or {}) for host in range(HOSTS)]
                self.is_hung = not self.wait(launchers)
                self.outputs = [pathlib.Path(folder, str(host)).read_text(errors="replace") for host in range(HOSTS)]
                self.statuses = [launcher.returncode for launcher in launchers]
                self.left = [f"process {pid}" for pid in marked_processes(self.marker)] + self.sockets()
                self.left += [f"file {path.name}" for path in pathlib.Path(folder, "tmp").iterdir()]
            finally:
                for pid in marked_processes(self.marker):
                    os.kill(pid, signal.SIGKILL)
                self.hosts.remove()

    def start(self, program, host, folder, fault):
        temporary = pathlib.Path(folder, "tmp")
        temporary.mkdir(exist_ok=True)
        variables = fault | {MARKER: self.marker, "OMP_NUM_THREADS": "1", "HOST_TIMEOUT_MS": str(TIMEOUT_MS),
                             "TMPDIR": str(temporary)}
        with open(pathlib.Path(folder, str(host)), "w", encoding="utf-8") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.hosts.names[host], FSDPRUN, f"--nnodes={HOSTS}", f"--node-rank={host}",
                 f"--nproc-per-node={RANKS_PER_HOST}", "--master-addr=10.78.0.1", "--master-port=29500",
                 f"--heartbeat-timeout={HEARTBEAT_S}", program, "--as-rank"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=os.environ | variables)

    def wait(self, launchers):
        end = time.monotonic() + LIMIT_S
        for launcher in launchers:
            try:
                launcher.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        while marked_processes(self.marker) and time.monotonic() < end:
            time.sleep(0.1)
        return time.monotonic() < end

    def sockets(self):
        found = []
        for name in self.hosts.names:
            found += re.findall(r"@fsdp\S*", ip("netns", "exec", name, "cat", "/proc/net/unix").stdout)
        return found

    def hashes(self):
        return re.findall(r"hash (\d+)", "".join(self.outputs))


def lost_ranks(fault):
    """Returns the ranks that the other ranks lose."""
    rank = int(fault["HOST_FAULT_RANK"])
    if fault["HOST_FAULT"] == "rank":
        return {rank}
    first = rank // RANKS_PER_HOST * RANKS_PER_HOST
    return set(range(first, first + RANKS_PER_HOST))


def took_place(trial, fault):
    """Returns true if the host shows the fault. A launcher that is killed passes on no output."""
    host = int(fault["HOST_FAULT_RANK"]) // RANKS_PER_HOST
    return "lost here" in trial.outputs[host] or trial.statuses[host] == -signal.SIGKILL


def findings(trial, fault, expected_hash):
    """Yields what is wrong, as lines to print."""
    if trial.is_hung:
        yield "hangs"
    for thing in trial.left:
        yield f"left behind: {thing}"
    for other in set(trial.hashes()) - {expected_hash}:
        yield f"ended with other numbers: {other}"
    if not took_place(trial, fault):
        if trial.hashes() != [expected_hash] * HOSTS * RANKS_PER_HOST:
            yield "does not end well without a fault: " + "".join(trial.outputs)[-600:]
        return
    host = int(fault["HOST_FAULT_RANK"]) // RANKS_PER_HOST
    survivor = trial.outputs[1 - host]
    names = "|".join([f"ranks? [^.]*{rank}" for rank in sorted(lost_ranks(fault))] + [f"node {host}: "])
    is_through = survivor.count("hash ") == RANKS_PER_HOST
    if not is_through and not re.search(names, survivor):
        yield f"host {1 - host} does not say who is lost: {survivor[-600:]}"
    if not is_through and trial.statuses[1 - host] == 0:
        yield f"the launcher of host {1 - host} ended with status 0"


def draw(generator, kind, passages):
    rank = generator.randrange(HOSTS * RANKS_PER_HOST)
    point = generator.choice(sorted(passages))
    return {"HOST_FAULT": kind, "HOST_FAULT_RANK": str(rank), "HOST_FAULT_POINT": point,
            "HOST_FAULT_PASSAGE": str(generator.randint(1, passages[point]))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run the trial with this number alone")
    parser.add_argument("--at-once", type=int, default=1)
    options = parser.parse_args()
    if not is_permitted():
        print("skipped: no network namespaces here")
        return NOT_PERMITTED
    quiet = Trial(options.program, 0)
    hashes = quiet.hashes()
    if len(hashes) != HOSTS * RANKS_PER_HOST or len(set(hashes)) != 1 or quiet.left:
        print("without a fault:", quiet.statuses, quiet.left, *quiet.outputs, sep="\n")
        return 1
    # The smallest number of passages among the ranks, keyed by fault point.
    passages = {}
    for count, point in re.findall(r"passed (\d+) (.+)", "".join(quiet.outputs)):
        passages[point] = min(passages.get(point, int(count)), int(count))
    generator = random.Random(options.seed)
    drawn = [draw(generator, FAULTS[i % len(FAULTS)], passages) for i in range(options.trials)]
    numbers = [n for n in range(1, len(drawn) + 1) if options.only in (None, n)]
    wrong = met = 0
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        trials = pool.map(lambda n: Trial(options.program, n, drawn[n - 1]), numbers)
        for number, trial in zip(numbers, trials):
            fault = drawn[number - 1]
            met += took_place(trial, fault)
            found = list(findings(trial, fault, hashes[0]))
            wrong += bool(found)
            if found:
                print(f"WRONG {number} " + " ".join(fault.values()), *found, sep="\n      ", flush=True)
    print(f"seed {options.seed}: {len(numbers)} trials, {met} took place, {wrong} wrong (a hang, a wrong number, nobody "
          "named, something left behind)")
    return 1 if wrong or met < 0.8 * len(numbers) else 0


if __name__ == "__main__":
    sys.exit(main())
