"""Measures time and memory of a training step with PyTorch's data-parallel engines, and prints one line of JSON.

    torchrun --nproc_per_node 2 gpt_step.py --engine fsdp2      (fsdp2, fsdp1, ddp)
    torchrun --nproc_per_node 2 gpt_step.py --engine none       every rank trains alone: the communication-free bound
    torchrun --nproc_per_node 1 gpt_step.py --device cuda       on GPUs over NCCL; otherwise on the CPU over Gloo

The model, the seeds and the data are those of `fsdp-bench step`, so the losses must be equal, too. With --precision
bf16 or fp16, FSDP2 has a MixedPrecisionPolicy with this dtype for parameters and sums, and losses are fp32; --engine
none uses autocast instead. Each rank has one thread, and the optimizer is torch's fused AdamW. `pss_mb` is a rank's
proportional set size after the third backward, in which pages that n ranks share count as 1/n of a page. On a GPU,
events measure the times, and `device_mb` is the most device memory that tensors took from the third step on.
"""
import json
import statistics

import torch
import torch.distributed as dist

import engines
import models


WARM_UP_STEPS = 2


def pss_mb():
    with open("/proc/self/smaps_rollup") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("Pss:"))


def parse_arguments():
    ap = engines.make_parser(__doc__)
    for name, default in dict(dim=256, layers=6, batch=4, seq=128, vocab=8192, heads=8, steps=12).items():
        ap.add_argument(f"--{name}", type=int, default=default)
    ap.add_argument("--precision", choices=list(engines.PRECISIONS), default="fp32")
    ap.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return ap.parse_args()


def main():
    a = parse_arguments()
    rank, world = engines.join_ranks(threads=1, device=a.device)
    torch.manual_seed(0)
    net = models.GPT(a.vocab, a.seq, a.dim, a.layers, a.heads).to(a.device)
    model = engines.shard(net, a.engine, list(net.blocks), precision=a.precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seconds, losses, memory = [], [], 0.0
    for step in range(a.steps):
        torch.manual_seed(100 + step)
        batch = torch.randint(a.vocab, (world * a.batch, a.seq + 1))[rank * a.batch:(rank + 1) * a.batch].to(a.device)
        if step == WARM_UP_STEPS and a.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        start = engines.now(a.device)
        optimizer.zero_grad()
        with engines.computes(a.engine, a.precision, a.device):
            loss = models.next_token_loss(model(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        backward_end = engines.now(a.device)
        memory = pss_mb() if step == WARM_UP_STEPS and a.device == "cpu" else memory
        optimizer_start = engines.now(a.device)
        optimizer.step()
        end = engines.now(a.device)
        seconds.append(engines.seconds_between(start, backward_end) + engines.seconds_between(optimizer_start, end))
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(round(mean.item() / world, 6))
    if a.device == "cuda":
        memory = torch.cuda.max_memory_allocated() / 2**20
    if rank == 0:
        median = statistics.median(seconds[WARM_UP_STEPS:])
        print(json.dumps(dict(engine="torch-" + a.engine, world=world, ms_per_step=round(median * 1e3, 1),
                              tokens_per_s=round(world * a.batch * a.seq / median),
                              **{"pss_mb" if a.device == "cpu" else "device_mb": round(memory)}, losses=losses)),
              flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
