"""The programs that compare runs: fsdp-bench, and the script that times torch's engines."""

import json
import os
import subprocess
import sys

# Heads and vocabulary are the defaults of both programs. The names are the numbers of parameters.
SIZES = {
    "9M": {"dim": 256, "layers": 6, "batch": 4, "seq": 128, "vocab": 8192, "heads": 8},
    "69M": {"dim": 768, "layers": 8, "batch": 1, "seq": 128, "vocab": 8192, "heads": 8},
}


def run(command, may_fail_late=False):
    """The JSON that a program prints, whatever else it prints.

    may_fail_late: a failure after the result was printed is told and does not count. torch's processes sometimes abort
    while they end ("terminate called without an active exception").
    """
    done = subprocess.run([str(word) for word in command], env=os.environ | {"OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 and len(lines) == 1 and may_fail_late:
        print(f"(torch's processes ended with status {done.returncode} after they had printed the result)", flush=True)
    elif done.returncode != 0 or len(lines) != 1:
        sys.exit(f"compare: {' '.join(map(str, command))} failed with status {done.returncode}:\n"
                 f"{done.stdout}{done.stderr}")
    return json.loads(lines[0])


def flags(size):
    return [word for name, value in SIZES[size].items() for word in (f"--{name}", value)]


def ours(arguments, size, *words):
    """A step of fsdp-bench."""
    launcher = []
    if arguments.launch == "fsdprun":
        launcher = [arguments.fsdprun, "--no-prefix", "--nproc_per_node", arguments.world]
    return run([*launcher, arguments.bench, "step", "--world", arguments.world, "--backend", arguments.backend,
                "--reshard", arguments.reshard, *flags(size), *words])


def torchs(arguments, size, engine):
    # Standalone: with a port of its own.
    return run([arguments.torchrun, "--standalone", "--nproc_per_node", arguments.world, arguments.peer,
                "--engine", engine, *flags(size), "--steps", arguments.steps], may_fail_late=True)


def take_round(arguments, size, number):
    """{"ours": result, "fsdp2": result, ...}. All take turns at going first: who follows finds a warmer machine."""
    names = ["ours", *arguments.peers]
    first = number % len(names)
    return {name: ours(arguments, size, "--steps", arguments.steps) if name == "ours" else torchs(arguments, size, name)
            for name in names[first:] + names[:first]}


def step_against_bound(arguments, size):
    return ours(arguments, size, "--versus", "none", "--pairs", arguments.pairs)
