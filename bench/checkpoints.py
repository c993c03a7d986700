"""Saving and loading: of fsdp-bench, and of the script that drives torch.distributed.checkpoint."""

import figures
import programs
import steps

INNER_ROUNDS = 3  # of each run, after one to warm up


def take_round(arguments, size, number):
    """{"ours": result, "dcp": result}"""
    words = [*steps.flags(size), "--folder", arguments.folder, "--rounds", INNER_ROUNDS]
    return programs.take_turns({
        "ours": lambda: programs.run_bench(arguments, "checkpoint", "--json", *programs.sharding(arguments), *words),
        "dcp": lambda: programs.torchs(arguments, "fsdp2", *words)}, number)


def measure(arguments, size):
    """The figures of one size, {figure: text}."""
    return figures.of_checkpoints(programs.take_rounds(
        arguments, size, lambda number: take_round(arguments, size, number),
        lambda result: f"saves {result['save']['mb_per_s']} MB/s, loads {result['load']['mb_per_s']} MB/s"))


def columns(arguments):
    return {size: measure(arguments, size) for size in arguments.sizes}


def legend(arguments):
    return (f"Medians over {arguments.rounds} rounds of the medians of {INNER_ROUNDS} saves and loads, with their "
            "range. Every write waits for the\ndisk (fsync), and what is read is not in memory before.")
