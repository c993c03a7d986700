"""Measures whole trainings by mnist or gpt, and by the script of the same name that trains the same model with
torch's engines."""

import dataclasses
import re
from collections.abc import Callable

import figures
import programs


def numbers(pattern, output):
    return [float(number) for number in re.findall(pattern, output, re.MULTILINE)]


def mnist_results(output):
    seconds = numbers(r"^Elapsed: (\S+) s$", output)
    accuracies = numbers(r"^Test set: .*\((\S+)%\)$", output)
    losses = numbers(r"^Train Epoch: \d+  Loss: (\S+)$", output)
    if not seconds or not accuracies:
        return []
    return [{"seconds": seconds[0], "losses": losses, "accuracy": accuracies[-1]}]


def gpt_results(output):
    """Computes seconds from tokens per second, because gpt prints the latter with more digits."""
    ends = re.findall(r"^(\d+) \w+s in \d+ s, (\d+) \w+s/s on .*, perplexity (\S+)$", output, re.MULTILINE)
    losses = numbers(r"validation loss (\S+) nats per \w+, perplexity \S+$", output)
    # The last line repeats the last validation with other digits.
    return [{"seconds": int(tokens) / int(rate), "validation_losses": losses[:-1], "perplexity": float(perplexity)}
            for tokens, rate, perplexity in ends]


@dataclasses.dataclass
class Training:
    find: Callable[[str], list]  # finds our results in the output
    losses: str  # key of the losses that are compared
    score: str  # key of the score that tells how well the model was trained
    own_flags: tuple = ()  # flags that the script does not have
    compares_memory: bool = True


TRAININGS = {
    "mnist": Training(mnist_results, "losses", "accuracy"),
    # Memory is not compared, because gpt also trains an unsharded model at the end for its table of memory.
    "gpt": Training(gpt_results, "validation_losses", "perplexity", ("--sample", 0), compares_memory=False),
}


def take_round(arguments, number):
    """Runs one round. Returns {"ours": result, "fsdp2": result, ...}; each result has seconds, whole_seconds,
    peak_rss_mb, losses and score.

    Each round has a different seed.
    """
    training = TRAININGS[arguments.program]
    words = [*arguments.flags, "--no-cuda", "--seed", number + 1]
    ours = getattr(arguments, arguments.program)
    command = programs.launched(arguments, ours, *programs.sharding(arguments), *words, *training.own_flags)
    runs = {"ours": lambda: programs.run(command, training.find)}
    for peer in arguments.peers:
        runs[peer] = lambda peer=peer: programs.torchs(arguments, peer, *words)
    return {name: result | {"losses": result[training.losses], "score": result[training.score]}
            for name, result in programs.take_turns(runs, number).items()}


def columns(arguments):
    training = TRAININGS[arguments.program]
    rounds = programs.take_rounds(
        arguments, arguments.program, lambda number: take_round(arguments, number),
        lambda result: f"{result['seconds']:.2f} s of {result['whole_seconds']:.2f} s, "
                       f"{training.score} {result['score']:g}")
    return {arguments.program: figures.of_trainings(rounds, arguments.peers, training)}


def legend(arguments):
    return (f"Medians over {arguments.rounds} rounds, each with a seed of its own, with their range. \"Training\" "
            "is the loop as\nthe programs measure it, \"whole\" the time from the start of the launcher to its end.")
