"""Training steps: of fsdp-bench, and of the script that times torch's engines."""

import figures
import programs

# Heads and vocabulary are the defaults of both programs. The names are the numbers of parameters.
SIZES = {
    "9M": {"dim": 256, "layers": 6, "batch": 4, "seq": 128, "vocab": 8192, "heads": 8},
    "69M": {"dim": 768, "layers": 8, "batch": 1, "seq": 128, "vocab": 8192, "heads": 8},
}


def flags(size):
    return [word for name, value in SIZES[size].items() for word in (f"--{name}", value)]


def ours(arguments, size, *words):
    command = [arguments.bench, "step", "--world", arguments.world, "--backend", arguments.backend,
               "--reshard", arguments.reshard, *programs.sharding(arguments), *flags(size), *words]
    return programs.run(programs.launched(arguments, *command) if arguments.launch == "fsdprun" else command)


def take_round(arguments, size, number):
    """{"ours": result, "fsdp2": result, ...}"""
    steps = ["--steps", arguments.steps]
    runs = {"ours": lambda: ours(arguments, size, *steps)}
    for peer in arguments.peers:
        runs[peer] = lambda peer=peer: programs.torchs(arguments, peer, *flags(size), *steps)
    return programs.take_turns(runs, number)


def measure(arguments, size):
    """The figures of one size, {figure: text}."""
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(take_round(arguments, size, number))
        told = "; ".join(f"{name} {rounds[-1][name]['tokens_per_s']} tokens/s, {rounds[-1][name]['pss_mb']} MB"
                         for name in ["ours", *arguments.peers])
        print(f"{size}, round {number + 1}: {told}", flush=True)
    bound = ours(arguments, size, "--versus", "none", "--pairs", arguments.pairs)
    print(f"{size}, {bound['pairs']} pairs: step {bound['ms_per_step'][0]} ms, bound {bound['ms_per_step'][1]} ms, "
          f"ratio {bound['ratio']}", flush=True)
    return figures.of_steps(rounds, bound, arguments.peers)


def columns(arguments):
    return {size: measure(arguments, size) for size in arguments.sizes}


def legend(arguments):
    return (f"Medians over {arguments.rounds} rounds of {arguments.steps} steps, with their range; of the step against "
            f"the bound, over {arguments.pairs} pairs,\nwith the 95 % bootstrap interval.")
