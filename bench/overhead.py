"""What a group costs the host in a training step: of fsdp-bench, and of the script that drives FSDP2."""

import figures
import programs


def ours(arguments, groups):
    command = [arguments.bench, "overhead", "--json", "--world", arguments.world, "--backend", arguments.backend,
               "--groups", groups, "--steps", arguments.steps]
    row = programs.run(programs.launched(arguments, *command) if arguments.launch == "fsdprun" else command)["rows"][0]
    return {"step": row["sharded"]["step"]["median"], "plain": row["plain"]["step"]["median"],
            "overhead": row["overhead"]["median"]}


def take_round(arguments, groups, number):
    """{"ours": result, "fsdp2": result}"""
    words = ["--groups", groups, "--steps", arguments.steps]
    return programs.take_turns({"ours": lambda: ours(arguments, groups),
                                "fsdp2": lambda: programs.torchs(arguments, "fsdp2", *words)}, number)


def measure(arguments, groups):
    """The figures of one number of groups, {figure: text}."""
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(take_round(arguments, groups, number))
        told = "; ".join(f"{name} {result['step']} us, unsharded {result['plain']} us"
                         for name, result in rounds[-1].items())
        print(f"{groups} groups, round {number + 1}: {told}", flush=True)
    return figures.of_overhead(rounds)


def columns(arguments):
    return {f"{groups} groups": measure(arguments, groups) for groups in arguments.groups}


def legend(arguments):
    return (f"Microseconds for each group: medians over {arguments.rounds} rounds of the medians of {arguments.steps} "
            "steps, with their quartiles. The overhead is what a\nstep takes more than the unsharded one before or "
            "after it.")
