"""Converts a text to the same token numbers as gpt."""

import pathlib

import torch


def read_text(path):
    """Returns the bytes for training and for validation. `path` is a folder with train.txt and valid.txt, or a file
    whose last tenth is for validation."""
    path = pathlib.Path(path)
    if path.is_dir():
        return (path / "train.txt").read_bytes(), (path / "valid.txt").read_bytes()
    text = path.read_bytes()
    split = len(text) * 9 // 10
    return text[:split], text[split:]


def encode_characters(training, validation):
    vocabulary = sorted(set(training + validation))
    numbers = torch.zeros(256, dtype=torch.int64)
    numbers[vocabulary] = torch.arange(len(vocabulary))
    return len(vocabulary), *(numbers[torch.frombuffer(bytearray(text), dtype=torch.uint8).long()]
                              for text in (training, validation))


def encode_words(training, validation):
    numbers = {b"<eos>": 0}
    for word in training.split():
        numbers.setdefault(word, len(numbers))
    unknown = numbers.setdefault(b"<unk>", len(numbers))

    def encode(text):
        tokens = []
        for line in text.split(b"\n"):
            tokens += [numbers.get(word, unknown) for word in line.split()]
            tokens.append(0)
        return torch.tensor(tokens[:-1])  # No line follows the last line break.
    return len(numbers), encode(training), encode(validation)


# Each function returns the size of the vocabulary, and training and validation as 1-D int64 tensors.
TOKENIZERS = {"characters": encode_characters, "words": encode_words}
