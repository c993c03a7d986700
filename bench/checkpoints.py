"""Saving and loading: of fsdp-bench, and of the script that drives torch.distributed.checkpoint."""

import figures
import programs
import steps

INNER_ROUNDS = 3  # of each run, after one to warm up


def take_round(arguments, size, number):
    """{"ours": result, "dcp": result}"""
    words = [*steps.flags(size), "--folder", arguments.folder, "--rounds", INNER_ROUNDS]
    command = [arguments.bench, "checkpoint", "--json", "--world", arguments.world, "--backend", arguments.backend,
               *programs.sharding(arguments), *words]
    return programs.take_turns({
        "ours": lambda: programs.run(programs.launched(arguments, *command) if arguments.launch == "fsdprun" else command),
        "dcp": lambda: programs.torchs(arguments, "fsdp2", *words)}, number)


def measure(arguments, size):
    """The figures of one size, {figure: text}."""
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(take_round(arguments, size, number))
        told = "; ".join(f"{name} saves {result['save']['mb_per_s']} MB/s, loads {result['load']['mb_per_s']} MB/s"
                         for name, result in rounds[-1].items())
        print(f"{size}, round {number + 1}: {told}", flush=True)
    return figures.of_checkpoints(rounds)


def columns(arguments):
    return {size: measure(arguments, size) for size in arguments.sizes}


def legend(arguments):
    return (f"Medians over {arguments.rounds} rounds of the medians of {INNER_ROUNDS} saves and loads, with their range. "
            "Every write waits for the\ndisk (fsync), and what is read is not in memory before.")
