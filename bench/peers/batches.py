"""Chooses the tokens that a rank sees in a step, as apps/text/text_batches.h does for gpt."""

import functools

import torch


def mix(seed, step):
    """Returns a hash of seed and step: splitmix64."""
    mask = 2**64 - 1
    z = ((seed + 1) * 0x9E3779B97F4A7C15 + step) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def generator(seed, step):
    return torch.Generator().manual_seed(mix(seed, step))


@functools.lru_cache(maxsize=1)
def order_of_epoch(sequences, seed, epoch):
    return torch.randperm(sequences, generator=generator(seed, epoch))


def split(windows):
    return windows[:, :-1], windows[:, 1:]


def anywhere(text, seq, sequences, seed, step, index, count):
    """Returns inputs and targets of shape [sequences, seq], from random places of the text. They are part `index` of
    the `count` parts that form the joined batch of a step."""
    starts = torch.randint(len(text) - seq, (count * sequences,), generator=generator(seed, step))
    return split(text.unfold(0, seq + 1, 1)[starts[index * sequences:(index + 1) * sequences]])


def steps_of_epoch(text, seq, sequences, count):
    return (len(text) - 1) // seq // (count * sequences)


def of_epoch(text, seq, sequences, seed, epoch, step, index, count):
    """Returns inputs and targets of a step of an epoch, whose sequences do not overlap."""
    windows = text.unfold(0, seq + 1, seq)
    first = (step * count + index) * sequences
    return split(windows[order_of_epoch(len(windows), seed, epoch)[first:first + sequences]])


def of_validation(text, seq, sequences, rank, world):
    """Returns the validation batches of a rank. All ranks have the same number of sequences."""
    windows = text.unfold(0, seq + 1, seq)
    count = len(windows) // world
    return [split(part) for part in windows[rank * count:(rank + 1) * count].split(sequences)]
