"""Measures the time of the host that a group adds to a training step of FSDP2, and prints one line of JSON.

    torchrun --nproc_per_node 2 overhead.py --groups 100

Steps of the sharded and of the unsharded model alternate. The model is that of `fsdp-bench overhead`: each module has
one vector of 8 elements, by which forward multiplies.
"""
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

import engines

WARM_UP_STEPS = 3
ELEMENTS = 8


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(ELEMENTS))

    def forward(self, x):
        return x * self.w


class ManyUnits(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.units = nn.ModuleList(Unit() for _ in range(count))

    def forward(self, x):
        for unit in self.units:
            x = unit(x)
        return x.sum()


class Contestant:
    def __init__(self, groups, engine, device):
        net = ManyUnits(groups).to(device)
        self.groups = groups
        self.model = engines.shard(net, engine, list(net.units))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.microseconds = []  # time of a step per group, on the slowest rank

    def take_step(self, x):
        dist.barrier()
        begun = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(x).backward()
        self.optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        seconds = torch.tensor(time.perf_counter() - begun, dtype=torch.float64, device=x.device)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        self.microseconds.append(seconds.item() * 1e6 / self.groups)


def main():
    parser = engines.make_parser(__doc__)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    a = parser.parse_args()
    rank, world = engines.join_ranks(threads=1, device=a.device)
    sharded, plain = Contestant(a.groups, a.engine, a.device), Contestant(a.groups, "none", a.device)
    x = torch.ones(ELEMENTS, device=a.device)
    for step in range(WARM_UP_STEPS + a.steps):
        for contestant in (sharded, plain) if step % 2 == 0 else (plain, sharded):
            contestant.take_step(x)
    if rank == 0:
        steps, plain_steps = sharded.microseconds[WARM_UP_STEPS:], plain.microseconds[WARM_UP_STEPS:]
        overhead = [step - plain_step for step, plain_step in zip(steps, plain_steps)]
        print(json.dumps(dict(engine="torch-" + a.engine, world=world, groups=a.groups,
                              step=round(statistics.median(steps), 2), plain=round(statistics.median(plain_steps), 2),
                              overhead=round(statistics.median(overhead), 2))), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
