"""Runs the programs that compare measures."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time


@dataclasses.dataclass
class Ended:
    status: int
    stdout: str
    stderr: str
    whole_seconds: float
    peak_rss_mb: float  # of the largest process


def run_to_end(command):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as stdout, \
            tempfile.TemporaryFile("w+", errors="replace") as stderr:
        begun = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)  # It reports the resources of only this program's processes.
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        return Ended(process.returncode, stdout.read(), stderr.read(), seconds, usage.ru_maxrss / 1024)


def json_results(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def run(command, find=json_results, may_fail_late=False):
    """Runs a program. Returns the one result that `find` finds in its output, with its seconds and memory.

    If `may_fail_late` is true, a failure after the result was printed is reported but does not count. torch's
    processes sometimes abort while they end ("terminate called without an active exception").
    """
    words = [str(word) for word in command]
    done = run_to_end(words)
    results = find(done.stdout)
    if done.status != 0 and len(results) == 1 and may_fail_late:
        print(f"(torch's processes ended with status {done.status} after they had printed the result)", flush=True)
    elif done.status != 0 or len(results) != 1:
        sys.exit(f"compare: {' '.join(words)} failed with status {done.status}:\n{done.stdout}{done.stderr}")
    return results[0] | {"whole_seconds": done.whole_seconds, "peak_rss_mb": done.peak_rss_mb}


def launched(arguments, *command):
    """Returns the command that starts our ranks as processes of their own."""
    return [arguments.fsdprun, "--no-prefix", "--nproc_per_node", arguments.world, *command]


def run_bench(arguments, program, *words):
    """Returns the result of a command of fsdp-bench. Its ranks are forks of one process, or processes of a launcher."""
    command = [arguments.bench, program, "--world", arguments.world, "--backend", arguments.backend, *words]
    return run(launched(arguments, *command) if arguments.launch == "fsdprun" else command)


def sharding(arguments):
    """Returns the flags of our programs that the peers' scripts do not have."""
    given = {"--strategy": arguments.strategy, "--mesh": arguments.mesh}
    return [word for flag, value in given.items() if value for word in (flag, value)]


def torchs(arguments, engine, *words):
    # With --standalone torchrun uses a port of its own.
    return run([arguments.torchrun, "--standalone", "--nproc_per_node", arguments.world, arguments.peer, "--engine",
                engine, *words], may_fail_late=True)


def take_turns(runs, number):
    """Runs round `number` of all programs. `runs` is {name: function}. Returns {name: result}.

    The programs take turns going first, because later ones find a warmer machine.
    """
    names = list(runs)
    first = number % len(names)
    results = {name: runs[name]() for name in names[first:] + names[:first]}
    return {name: results[name] for name in names}


def take_rounds(arguments, name, take_round, tell):
    """Runs all rounds and prints each result when it arrives. Returns the results, [{engine: result}].

    take_round(number) returns {engine: result}, and tell(result) returns the text for the result of one engine.
    """
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(take_round(number))
        told = "; ".join(f"{engine} {tell(result)}" for engine, result in
                         sorted(rounds[-1].items(), key=lambda item: not item[0].startswith(("ours", "fsdp,"))))
        print(f"{name}, round {number + 1}: {told}", flush=True)
    return rounds
