"""Runs torch's data-parallel engines on ranks that torchrun starts: on the CPU over Gloo, or on GPUs over NCCL."""

import argparse
import contextlib
import os
import resource
import time

import torch
import torch.distributed as dist
from torch import nn

# With none, every rank trains a whole model alone; this is the bound without communication.
NAMES = ("fsdp2", "fsdp1", "ddp", "none")


def make_parser(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("--engine", choices=NAMES, default="fsdp2")
    return parser


def join_ranks(threads, device="cpu"):
    """Returns this rank and the number of ranks."""
    if "RANK" not in os.environ:
        raise SystemExit("start this script with torchrun, as its docstring shows")
    torch.set_num_threads(threads)
    if device == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("no CUDA device is present")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return dist.get_rank(), dist.get_world_size()


# The dtype in which parameters are gathered, operators compute and gradients are summed. Losses stay fp32.
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def shard(model, engine, groups, reshard_after_forward=True, precision="fp32"):
    """Returns the model, sharded by `engine`. The modules in `groups` become groups of their own, and the rest of
    the model is the root group."""
    device = next(model.parameters()).device
    if precision != "fp32" and engine not in ("fsdp2", "none"):
        raise SystemExit(f"--precision {precision} is for --engine fsdp2 and none")
    if engine == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
        options = {"mesh": mesh} if reshard_after_forward else {"mesh": mesh, "reshard_after_forward": False}
        inner, outer = MixedPrecisionPolicy(), MixedPrecisionPolicy()
        if precision != "fp32":
            inner = MixedPrecisionPolicy(param_dtype=PRECISIONS[precision])
            outer = MixedPrecisionPolicy(param_dtype=PRECISIONS[precision], output_dtype=torch.float32)
        for group in groups:
            fully_shard(group, mp_policy=inner, **options)
        return fully_shard(model, mp_policy=outer, **options)
    if engine == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
        from torch.distributed.fsdp.wrap import CustomPolicy
        chosen = set(groups)
        strategy = ShardingStrategy.FULL_SHARD if reshard_after_forward else ShardingStrategy.SHARD_GRAD_OP
        return FullyShardedDataParallel(model, auto_wrap_policy=CustomPolicy(lambda module: module in chosen),
                                        sharding_strategy=strategy, device_id=device, use_orig_params=True)
    return nn.parallel.DistributedDataParallel(model) if engine == "ddp" else model


def computes(engine, precision, device):
    """Returns a context for forward. A model that trains alone has no policy, so autocast sets its precision."""
    if engine == "none" and precision != "fp32":
        return torch.autocast(device, PRECISIONS[precision])
    return contextlib.nullcontext()


def reduces(model, engine, wanted):
    """Returns a context for a forward and a backward. It reduces gradients over the ranks only if `wanted` is true."""
    if engine == "fsdp2":
        model.set_requires_gradient_sync(wanted)
    return contextlib.nullcontext() if wanted or engine in ("fsdp2", "none") else model.no_sync()


def clip_grad_norm(model, engine, max_norm):
    """Clips the norm of the gradients. FSDP1 has a method of its own, because its ranks know only their part of the
    norm."""
    if engine == "fsdp1":
        model.clip_grad_norm_(max_norm)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def mean_over_ranks(value):
    mean = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def now(device):
    """Returns the current time. On a GPU it is an event, which records when the GPU has done all work queued so far."""
    if device == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(start, end):
    if isinstance(end, float):
        return end - start
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def peak_rss_mb():
    """Returns the largest resident memory of each rank so far, in MiB."""
    peaks = [None] * dist.get_world_size()
    dist.all_gather_object(peaks, round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
    return peaks
