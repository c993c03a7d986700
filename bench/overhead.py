"""Measures the time of the host that a group adds to a training step, with fsdp-bench and with the script that drives
FSDP2."""

import figures
import programs


def ours(arguments, groups):
    row = programs.run_bench(arguments, "overhead", "--json", "--groups", groups, "--steps", arguments.steps)["rows"][0]
    return {"step": row["sharded"]["step"]["median"], "plain": row["plain"]["step"]["median"],
            "overhead": row["overhead"]["median"]}


def take_round(arguments, groups, number):
    """Runs one round. Returns {"ours": result, "fsdp2": result}."""
    words = ["--groups", groups, "--steps", arguments.steps]
    return programs.take_turns({"ours": lambda: ours(arguments, groups),
                                "fsdp2": lambda: programs.torchs(arguments, "fsdp2", *words)}, number)


def measure(arguments, groups):
    """Measures one number of groups. Returns {figure: text}."""
    return figures.of_overhead(programs.take_rounds(
        arguments, f"{groups} groups", lambda number: take_round(arguments, groups, number),
        lambda result: f"{result['step']} us, unsharded {result['plain']} us"))


def columns(arguments):
    return {f"{groups} groups": measure(arguments, groups) for groups in arguments.groups}


def legend(arguments):
    return (f"Microseconds per group: medians over {arguments.rounds} rounds of the medians of {arguments.steps} "
            "steps, with their quartiles. The overhead is how much\nlonger a step takes than the unsharded step before "
            "or after it.")
