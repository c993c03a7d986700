"""Training-step time and memory of PyTorch's own data-parallel engines on CPU ranks (Gloo), as one JSON line.

    torchrun --nproc_per_node 2 gpt_step.py --engine fsdp2      (fsdp2, fsdp1, ddp)
    torchrun --nproc_per_node 2 gpt_step.py --engine none       every rank trains alone: the communication-free bound

The model, the seeds and the data equal those of `fsdp-bench step`, so the losses must too.
One thread per rank; AdamW is the fused one. `pss_mb` is a rank's proportional set size after the third backward,
so pages that ranks share count once.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, vocab, seq, dim, layers, heads):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(seq, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def shard(model, engine):
    if engine == "fsdp2":
        from torch.distributed.fsdp import fully_shard
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if engine == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}),
                                        device_id=torch.device("cpu"), use_orig_params=True)
    return nn.parallel.DistributedDataParallel(model) if engine == "ddp" else model


def pss_mb():
    with open("/proc/self/smaps_rollup") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("Pss:"))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--engine", choices=["fsdp2", "fsdp1", "ddp", "none"], default="fsdp2")
    for name, default in dict(dim=256, layers=6, batch=4, seq=128, vocab=8192, heads=8, steps=12).items():
        ap.add_argument(f"--{name}", type=int, default=default)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = shard(GPT(a.vocab, a.seq, a.dim, a.layers, a.heads), a.engine)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seconds, losses, memory = [], [], 0.0
    for step in range(a.steps):
        torch.manual_seed(100 + step)
        batch = torch.randint(a.vocab, (world * a.batch, a.seq + 1))[rank * a.batch:(rank + 1) * a.batch]
        start = time.perf_counter()
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, a.vocab), batch[:, 1:].reshape(-1))
        loss.backward()
        spent = time.perf_counter() - start
        memory = pss_mb() if step == 2 else memory
        start = time.perf_counter()
        optimizer.step()
        seconds.append(spent + time.perf_counter() - start)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(round(mean.item() / world, 6))
    if rank == 0:
        median = statistics.median(seconds[2:])
        print(json.dumps(dict(engine="torch-" + a.engine, world=world, ms_per_step=round(median * 1e3, 1),
                              tokens_per_s=round(world * a.batch * a.seq / median), pss_mb=round(memory),
                              losses=losses)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, see the docstring")
    main()
