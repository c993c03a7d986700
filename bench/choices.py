"""Compares training steps of all choices that a user has, in a table and a picture: fsdp, sharded and replicated,
over shared memory and Gloo, and PyTorch's FSDP2 and DDP.
"""

import argparse
import json
import statistics
import subprocess
import sys

import figures
import programs
import steps

OURS = {
    "fsdp, sharded, shared memory": {"backend": "shm"},
    "fsdp, replicated, shared memory": {"backend": "shm", "strategy": "replicate"},
    "fsdp, sharded, Gloo": {"backend": "gloo"},
    "fsdp, replicated, Gloo": {"backend": "gloo", "strategy": "replicate"},
}
PEERS = {"PyTorch's FSDP2": "fsdp2", "PyTorch's DDP": "ddp"}
BASE = "PyTorch's DDP"  # the choice whose speed counts as 1


def take_round(arguments, size, number):
    """Returns {choice: result}. A launcher starts our ranks as processes, like PyTorch's, so memory is comparable."""
    runs = {}
    for name, flags in OURS.items():
        own = argparse.Namespace(**vars(arguments) | {"launch": "fsdprun"} | flags)
        runs[name] = lambda own=own: steps.ours(own, size, "--steps", arguments.steps)
    for name, engine in PEERS.items():
        runs[name] = lambda engine=engine: programs.torchs(arguments, engine, *steps.flags(size), "--steps",
                                                           arguments.steps)
    return programs.take_turns(runs, number)


def measure(arguments, size):
    """Returns {choice: {"tokens_per_s": ..., "speed": [median, least, greatest], "megabytes": ...}} for one size."""
    rounds = programs.take_rounds(arguments, size, lambda number: take_round(arguments, size, number),
                                  lambda result: f"{result['tokens_per_s']} tokens/s, {result['pss_mb']} MB")
    print(f"{size}: losses differ by {figures.losses_agree(rounds, BASE)} at most, relative to {BASE}", flush=True)
    measured = {}
    for name in (*OURS, *PEERS):
        speeds = [results[name]["tokens_per_s"] / results[BASE]["tokens_per_s"] for results in rounds]
        measured[name] = {"tokens_per_s": statistics.median(results[name]["tokens_per_s"] for results in rounds),
                          "speed": [statistics.median(speeds), min(speeds), max(speeds)],
                          "megabytes": statistics.median(results[name]["pss_mb"] for results in rounds)}
    return measured


def columns(arguments):
    measured = {size: measure(arguments, size) for size in arguments.sizes}
    if arguments.picture:
        data = arguments.picture.with_suffix(".json")
        data.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        if subprocess.run([arguments.plot, "choices", arguments.picture, data], check=False).returncode != 0:
            sys.exit(f"compare: {arguments.plot} did not draw {data}.")
    result = {}
    for size, choices in measured.items():
        result |= {
            f"{size}: tokens/s": {name: f"{found['tokens_per_s']:,.0f}" for name, found in choices.items()},
            f"{size}: speed": {name: "{:.2f} ({:.2f} to {:.2f})".format(*found["speed"])
                              for name, found in choices.items()},
            f"{size}: MB": {name: f"{found['megabytes']:,.0f}" for name, found in choices.items()}}
    return result


def legend(arguments):
    return (f"Medians over {arguments.rounds} rounds of {arguments.steps} steps. Speed is the ratio to PyTorch's DDP "
            "within a round, with its\nrange. MB is the PSS of rank 0 after backward, when it has all of its gradients.")
