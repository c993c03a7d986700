"""Measures torch.distributed.checkpoint with FSDP2's model and AdamW's state, and prints one line of JSON.

    torchrun --nproc_per_node 2 checkpoint.py --folder FOLDER

The model and what is timed are those of `fsdp-bench checkpoint`: saving the model and the optimizer until the files are
on the disk (fsync), and loading files that are not in memory before. Times are those of the slowest rank. Each
round writes to a new folder.
"""
import json
import os
import pathlib
import shutil
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import engines
import models


def parse_arguments():
    parser = engines.make_parser(__doc__)
    for name, default in dict(dim=256, layers=6, batch=4, seq=128, vocab=8192, heads=8, rounds=5).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    return parser.parse_args()


def files_in(folder):
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def forget_cached_files(folder):
    """Makes the system drop its cached pages of the files, so that the next reader reads from the disk."""
    for path in files_in(folder):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def seconds_of(act):
    """Returns the seconds that `act` takes on the slowest rank."""
    dist.barrier()
    begun = time.perf_counter()
    act()
    seconds = torch.tensor(time.perf_counter() - begun, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def save(model, optimizer, folder):
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))


def load(model, optimizer, folder):
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main():
    arguments = parse_arguments()
    rank, world = engines.join_ranks(threads=1)
    torch.manual_seed(0)
    net = models.GPT(arguments.vocab, arguments.seq, arguments.dim, arguments.layers, arguments.heads)
    model = engines.shard(net, "fsdp2", list(net.blocks))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch = torch.randint(arguments.vocab, (arguments.batch, arguments.seq + 1))
    models.next_token_loss(model(batch[:, :-1]), batch[:, 1:]).backward()
    optimizer.step()  # This step creates the optimizer's state.

    times = {"save": [], "load": []}
    for number in range(-1, arguments.rounds):  # The first round warms up.
        folder = arguments.folder / f"dcp-{number}"
        saved = seconds_of(lambda: save(model, optimizer, folder))
        forget_cached_files(folder)
        loaded = seconds_of(lambda: load(model, optimizer, folder))
        megabytes = sum(path.stat().st_size for path in files_in(folder)) / 1e6
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
        if number >= 0:
            times["save"].append(saved)
            times["load"].append(loaded)
    if rank == 0:
        medians = {name: statistics.median(values) for name, values in times.items()}
        print(json.dumps(dict(engine="torch-dcp", world=world, megabytes=round(megabytes, 1), rounds=arguments.rounds,
                              **{name: dict(seconds=round(seconds, 4), mb_per_s=round(megabytes / seconds, 1))
                                 for name, seconds in medians.items()})), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
