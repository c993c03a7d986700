"""Compares GPTs of Python's libraries with fsdp's. Tests of gpt_test.cpp run this script.

gpt.py torch FOLDER: loads FOLDER/model.safetensors into PyTorch's GPT, compares its logits with those in
ours.safetensors, trains it and saves it as theirs.safetensors, and a step later as after.safetensors.
gpt.py transformers FOLDER: saves GPT-2s of random values to FOLDER/ACTIVATION, their logits to
FOLDER/ACTIVATION.safetensors.
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers"))
from models import GPT, next_token_loss  # pylint: disable=wrong-import-position


def train_step(model, ids):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    next_token_loss(model(ids[:, :-1]), ids[:, 1:]).backward()
    optimizer.step()
    optimizer.zero_grad()


def with_torch(folder):
    ours = load_file(folder / "ours.safetensors")
    state = load_file(folder / "model.safetensors")
    vocab, dim = state["tok.weight"].shape
    layers = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))
    model = GPT(vocab, len(state["pos.weight"]), dim, layers, heads=3)
    model.load_state_dict(state)
    with torch.no_grad():
        logits = model(ours["ids"][:, :-1])
    torch.testing.assert_close(logits, ours["logits"], rtol=0, atol=1e-5)
    for name in ("theirs", "after"):
        train_step(model, ours["ids"])
        save_file(model.state_dict(), folder / f"{name}.safetensors")


def with_transformers(folder):
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging
    logging.disable_progress_bar()
    torch.manual_seed(3)
    for activation in ("gelu_new", "gelu"):
        model = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_positions=10, n_embd=24, n_layer=2, n_head=3,
                                           activation_function=activation, bos_token_id=0, eos_token_id=0)).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # biases are 0 at first, and norms 1
                parameter.add_(torch.randn_like(parameter) * 0.3)
            ids = torch.randint(61, (4, 10))
            logits = model(ids).logits
        model.save_pretrained(folder / activation)
        save_file({"ids": ids, "logits": logits}, folder / f"{activation}.safetensors")


if __name__ == "__main__":
    {"torch": with_torch, "transformers": with_transformers}[sys.argv[1]](pathlib.Path(sys.argv[2]))
