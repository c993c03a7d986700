"""Trains a GPT on a text with one of torch's own engines, as fsdp-gpt does with fsdp.

    torchrun --nproc_per_node 2 gpt.py --engine fsdp2 --data wikitext-2 --tokenizer words --epochs 1

The engines are fsdp2, fsdp1, ddp and none. Model, initial values, tokens, batches, schedule and flags are those of
fsdp-gpt, so without dropout the losses are equal up to rounding. The optimizer is torch's fused AdamW. The script
prints no samples and no baselines.

Rank 0 prints one line of JSON: losses (of the joined batch, for each step), validation_losses (after each epoch, every
--eval-every steps and at the end), perplexity (of the last validation), tokens, seconds (of training, with loading of
data but without validation), tokens_per_s, whole_seconds (with imports, reading and validation), peak_rss_mb of each
rank.
"""

import time

STARTED = time.perf_counter()

import json
import math

import torch
import torch.distributed as dist

import batches
import engines
import models
import tokens

SIZES = {  # These are the sizes of apps/gpt/sizes.h.
    "tiny": {"dim": 128, "layers": 4, "heads": 4, "seq": 64, "lr": 3e-3},
    "small": {"dim": 256, "layers": 6, "heads": 8, "seq": 128, "lr": 1e-3},
    "gpt2": {"dim": 768, "layers": 12, "heads": 12, "seq": 1024, "lr": 6e-4},
}
LOWEST_SHARE_OF_LR = 0.1


class Plan:
    """The steps, learning rates and batches of this rank."""

    def __init__(self, arguments, training, rank, world):
        self.arguments, self.training, self.rank, self.world = arguments, training, rank, world
        self.shares = world * arguments.update_freq
        self.steps_of_epoch = 0
        self.steps = arguments.steps
        if arguments.epochs:
            self.steps_of_epoch = batches.steps_of_epoch(training, arguments.seq, arguments.batch, self.shares)
            self.steps = arguments.epochs * self.steps_of_epoch

    def learning_rate(self, step):
        highest, warmup = self.arguments.lr, self.arguments.warmup
        if step < warmup:
            return highest * (step + 1) / warmup
        progress = min((step - warmup) / max(self.steps - warmup, 1), 1.0)
        share = 0.5 * (1 + math.cos(math.pi * progress))
        return highest * (LOWEST_SHARE_OF_LR + (1 - LOWEST_SHARE_OF_LR) * share)

    def batch(self, step, micro_batch):
        sizes = self.training, self.arguments.seq, self.arguments.batch, self.arguments.seed
        index = micro_batch * self.world + self.rank
        if not self.steps_of_epoch:
            return batches.anywhere(*sizes, step, index, self.shares)
        return batches.of_epoch(*sizes, *divmod(step, self.steps_of_epoch), index, self.shares)

    def validates_after(self, done):
        every = self.arguments.eval_every
        return done == self.steps or (self.steps_of_epoch and done % self.steps_of_epoch == 0) or (
            every and done % every == 0)


def make_model(arguments, vocabulary, rank):
    """Returns the sharded model and its optimizer."""
    torch.manual_seed(arguments.seed)
    net = models.GPT(vocabulary, arguments.seq, arguments.dim, arguments.layers, arguments.heads, arguments.dropout)
    # FSDP1 flattens parameters, so their numbers of dims must be read before sharding.
    decays = [parameter.dim() > 1 for parameter in net.parameters()]
    model = engines.shard(net, arguments.engine, list(net.blocks), not arguments.no_reshard_after_forward)
    torch.manual_seed(arguments.seed + 1 + rank)  # Each rank draws its own dropout.
    groups = [{"params": [parameter for parameter, decay in zip(model.parameters(), decays, strict=True)
                          if decay == wanted], "weight_decay": weight_decay}
              for wanted, weight_decay in ((True, arguments.weight_decay), (False, 0.0))]
    return model, torch.optim.AdamW(groups, lr=arguments.lr, betas=(0.9, 0.99), fused=True)


def train_step(model, optimizer, plan, step):
    """Takes one step. Returns the loss of the joined batch."""
    arguments, total = plan.arguments, 0.0
    for group in optimizer.param_groups:
        group["lr"] = plan.learning_rate(step)
    optimizer.zero_grad()
    for micro_batch in range(arguments.update_freq):
        inputs, targets = plan.batch(step, micro_batch)
        with engines.reduces(model, arguments.engine, micro_batch + 1 == arguments.update_freq):
            loss = models.next_token_loss(model(inputs), targets) / arguments.update_freq
            loss.backward()
        total += loss.item()
    engines.clip_grad_norm(model, arguments.engine, arguments.max_grad_norm)
    optimizer.step()
    return engines.mean_over_ranks(total)


@torch.no_grad()
def validation_loss(model, validation):
    model.eval()
    losses = [models.next_token_loss(model(inputs), targets).item() * len(inputs) for inputs, targets in validation]
    model.train()
    return engines.mean_over_ranks(sum(losses) / sum(len(inputs) for inputs, _ in validation))


def train(model, optimizer, plan, validation):
    losses, validation_losses, seconds = [], [], 0.0
    begun = time.perf_counter()
    for step in range(plan.steps):
        losses.append(round(train_step(model, optimizer, plan, step), 6))
        if plan.validates_after(step + 1):
            seconds += time.perf_counter() - begun
            validation_losses.append(validation_loss(model, validation))
            begun = time.perf_counter()
    trained = plan.steps * plan.shares * plan.arguments.batch * plan.arguments.seq
    return dict(losses=losses, validation_losses=[round(loss, 4) for loss in validation_losses],
                perplexity=round(math.exp(validation_losses[-1]), 4), tokens=trained, seconds=round(seconds, 2),
                tokens_per_s=int(trained / seconds))


def parse_arguments():
    parser = engines.make_parser(__doc__)
    parser.add_argument("--text", "--data", required=True, help="a file, or a folder with train.txt and valid.txt")
    parser.add_argument("--tokenizer", choices=tokens.TOKENIZERS, default="characters")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    for name in ("dim", "layers", "heads", "seq"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--batch", "--batch_size", type=int, default=16)
    for name, default in {"update-freq": 1, "epochs": 0, "steps": 1700, "warmup": 100, "eval-every": None, "seed": 0,
                          "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in {"dropout": 0.0, "weight-decay": 0.1, "max-grad-norm": 1.0}.items():
        parser.add_argument(f"--{name}", type=float, default=default)
    parser.add_argument("--no-reshard-after-forward", action="store_true")
    parser.add_argument("--no-cuda", action="store_true", help="has no effect: ranks are on the CPU")
    arguments = parser.parse_args()
    for name, value in SIZES[arguments.size].items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if arguments.eval_every is None:
        arguments.eval_every = 0 if arguments.epochs else 250
    return arguments


def main():
    arguments = parse_arguments()
    vocabulary, training, validation = tokens.TOKENIZERS[arguments.tokenizer](*tokens.read_text(arguments.text))
    rank, world = engines.join_ranks(arguments.threads)
    model, optimizer = make_model(arguments, vocabulary, rank)
    result = train(model, optimizer, Plan(arguments, training, rank, world),
                   batches.of_validation(validation, arguments.seq, arguments.batch, rank, world))
    memory = engines.peak_rss_mb()
    if rank == 0:
        print(json.dumps(dict(engine="torch-" + arguments.engine, world=world, **result,
                              whole_seconds=round(time.perf_counter() - STARTED, 2), peak_rss_mb=memory)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
