"""Measures saving and loading by fsdp-bench, and by the script that drives torch.distributed.checkpoint."""

import figures
import programs
import steps

INNER_ROUNDS = 3  # rounds of each run, after one to warm up


def take_round(arguments, size, number):
    """Runs one round. Returns {"ours": result, "dcp": result}."""
    words = [*steps.flags(size), "--folder", arguments.folder, "--rounds", INNER_ROUNDS]
    return programs.take_turns({
        "ours": lambda: programs.run_bench(arguments, "checkpoint", "--json", *programs.sharding(arguments), *words),
        "dcp": lambda: programs.torchs(arguments, "fsdp2", *words)}, number)


def measure(arguments, size):
    """Measures one size. Returns {figure: text}."""
    return figures.of_checkpoints(programs.take_rounds(
        arguments, size, lambda number: take_round(arguments, size, number),
        lambda result: f"saves {result['save']['mb_per_s']} MB/s, loads {result['load']['mb_per_s']} MB/s"))


def columns(arguments):
    return {size: measure(arguments, size) for size in arguments.sizes}


def legend(arguments):
    return (f"Medians over {arguments.rounds} rounds of the medians of {INNER_ROUNDS} saves and loads, with their "
            "range. Every write waits for the\ndisk (fsync), and no file is in memory before it is read.")
