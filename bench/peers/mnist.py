"""Trains the ConvNet of torch's FSDP tutorial on MNIST with one of torch's own engines, as fsdp-mnist does with fsdp.

    torchrun --nproc_per_node 2 mnist.py --engine fsdp2 --data FOLDER --epochs 3      (fsdp2, fsdp1, ddp, none)

The script follows the tutorial: Adadelta, StepLR, a DistributedSampler for training and test, a DataLoader with 2
workers, metrics that are reduced over the ranks. It does not need torchvision: it reads the images itself, and the
workers normalise them one by one, as torchvision's transforms do. Initial values, the order of the images, the loss
function and the flags are those of fsdp-mnist, so the losses differ only by rounding and its consequences. If the
number of ranks does not divide the number of test images, torch's sampler counts some images twice.

Rank 0 prints one line of JSON: losses (mean loss of an image in training), test_losses and accuracies (percent) of each
epoch, accuracy (of the last epoch), seconds (of the whole loop), whole_seconds (with imports and reading), peak_rss_mb
of each rank.
"""

import time

STARTED = time.perf_counter()

import gzip
import json
import pathlib
import struct

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import engines
import models

MEAN, STD = 0.1307, 0.3081
WORKERS = 2


def read_idx(folder, name):
    path = folder / name
    with path.open("rb") if path.exists() else gzip.open(f"{path}.gz") as file:
        content = bytearray(file.read())
    dimensions = content[3]
    sizes = struct.unpack_from(f">{dimensions}I", content, 4)
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * dimensions).view(sizes)


class Digits(Dataset):
    def __init__(self, folder, part, samples):
        """Reads the first `samples` images, or all of them if `samples` is 0."""
        self.pixels = read_idx(folder, f"{part}-images-idx3-ubyte")[:samples or None]
        self.labels = read_idx(folder, f"{part}-labels-idx1-ubyte")[:samples or None].tolist()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.pixels[index].unsqueeze(0).float().div_(255).sub_(MEAN).div_(STD), self.labels[index]


def make_loader(digits, batch_size, shuffle, seed):
    # The loader gets a generator of its own, so that it does not draw from the numbers that dropout uses.
    return DataLoader(digits, batch_size, sampler=DistributedSampler(digits, shuffle=shuffle, seed=seed),
                      num_workers=WORKERS, generator=torch.Generator())


def train_epoch(model, optimizer, loader, epoch):
    """Trains for one epoch. Returns the mean loss of an image."""
    model.train()
    loader.sampler.set_epoch(epoch)
    sums = torch.zeros(2, dtype=torch.float64)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels, reduction="sum")
        # Engines average gradients over the ranks, but the loss of the joined batch is the sum.
        (loss * dist.get_world_size()).backward()
        optimizer.step()
        sums += torch.tensor([loss.item(), len(labels)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


@torch.no_grad()
def test(model, loader):
    """Returns the mean loss of an image, and the percentage of images that the model recognises."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    for images, labels in loader:
        output = model(images)
        right = output.argmax(1).eq(labels).sum().item()
        sums += torch.tensor([F.nll_loss(output, labels, reduction="sum").item(), right, len(labels)])
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), (100 * sums[1] / sums[2]).item()


def parse_arguments():
    parser = engines.make_parser(__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with MNIST's four files")
    for name, default in {"train-samples": 0, "test-samples": 0, "batch-size": 64, "test-batch-size": 1000,
                          "epochs": 10, "seed": 1, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--auto-wrap", action="store_true", help="make fc1, which has most parameters, a group")
    parser.add_argument("--no-dropout", action="store_true")
    parser.add_argument("--no-cuda", action="store_true", help="has no effect: ranks are on the CPU")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    train_set = Digits(arguments.data, "train", arguments.train_samples)
    test_set = Digits(arguments.data, "t10k", arguments.test_samples)
    rank, world = engines.join_ranks(arguments.threads)

    torch.manual_seed(arguments.seed)
    net = models.ConvNet(drops_out=not arguments.no_dropout)
    model = engines.shard(net, arguments.engine, [net.fc1] if arguments.auto_wrap else [])
    torch.manual_seed(arguments.seed + 1 + rank)
    train_loader = make_loader(train_set, arguments.batch_size, True, arguments.seed)
    test_loader = make_loader(test_set, arguments.test_batch_size, False, arguments.seed)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=arguments.lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=arguments.gamma)

    losses, test_losses, accuracies = [], [], []
    begun = time.perf_counter()
    for epoch in range(1, arguments.epochs + 1):
        losses.append(round(train_epoch(model, optimizer, train_loader, epoch), 6))
        test_loss, accuracy = test(model, test_loader)
        test_losses.append(round(test_loss, 4))
        accuracies.append(round(accuracy, 2))
        schedule.step()
    seconds = time.perf_counter() - begun

    memory = engines.peak_rss_mb()
    if rank == 0:
        print(json.dumps(dict(engine="torch-" + arguments.engine, world=world, seconds=round(seconds, 2),
                              whole_seconds=round(time.perf_counter() - STARTED, 2), losses=losses,
                              test_losses=test_losses, accuracies=accuracies, accuracy=accuracies[-1],
                              peak_rss_mb=memory)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
