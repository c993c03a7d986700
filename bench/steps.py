"""Measures training steps by fsdp-bench, and by the script that times torch's engines."""

import figures
import programs

# The names are the numbers of parameters. The larger two sizes have the default heads and vocabulary of both programs.
# The smallest size is for fp16, because products in fp16 are many times slower on processors without instructions for
# it.
SIZES = {
    "1M": {"dim": 128, "layers": 4, "batch": 2, "seq": 64, "vocab": 2048, "heads": 8},
    "9M": {"dim": 256, "layers": 6, "batch": 4, "seq": 128, "vocab": 8192, "heads": 8},
    "69M": {"dim": 768, "layers": 8, "batch": 1, "seq": 128, "vocab": 8192, "heads": 8},
}


def flags(size):
    return [word for name, value in SIZES[size].items() for word in (f"--{name}", value)]


def ours(arguments, size, *words):
    return programs.run_bench(arguments, "step", "--reshard", arguments.reshard, *programs.sharding(arguments),
                              *flags(size), *words)


def take_round(arguments, size, number):
    """Runs one round. Returns {"ours": result, "fsdp2": result, ...}. With low precision it also has the results of
    fp32, named "ours, fp32" and so on."""
    runs = {}
    for precision in dict.fromkeys((arguments.precision, "fp32")):
        words = ["--steps", arguments.steps, *(["--precision", precision] if precision != "fp32" else [])]
        suffix = figures.FP32 if precision != arguments.precision else ""
        runs["ours" + suffix] = lambda words=words: ours(arguments, size, *words)
        for peer in arguments.peers:
            runs[peer + suffix] = lambda peer=peer, words=words: programs.torchs(arguments, peer, *flags(size), *words)
    return programs.take_turns(runs, number)


def measure(arguments, size):
    """Measures one size. Returns {figure: text}."""
    rounds = programs.take_rounds(arguments, size, lambda number: take_round(arguments, size, number),
                                  lambda result: f"{result['tokens_per_s']} tokens/s, {result['pss_mb']} MB")
    if arguments.precision != "fp32":
        return figures.of_low_steps(rounds, arguments.precision)
    bound = ours(arguments, size, "--versus", "none", "--pairs", arguments.pairs)
    print(f"{size}, {bound['pairs']} pairs: step {bound['ms_per_step'][0]} ms, bound {bound['ms_per_step'][1]} ms, "
          f"ratio {bound['ratio']}", flush=True)
    return figures.of_steps(rounds, bound, arguments.peers)


def columns(arguments):
    return {size: measure(arguments, size) for size in arguments.sizes}


def legend(arguments):
    if arguments.precision != "fp32":
        return f"Medians over {arguments.rounds} rounds of {arguments.steps} steps, with their range."
    return (f"Medians over {arguments.rounds} rounds of {arguments.steps} steps, with their range. The ratio to the "
            f"bound is over {arguments.pairs} pairs,\nwith its 95 % bootstrap interval.")
