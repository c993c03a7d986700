"""What is run on a GPU: commands, how long each may take, and what its end means."""

import dataclasses
import re
import socket
import sys
from collections.abc import Callable

import readers
import steps

# Those of bench/compare, in which launches count, and GPT-2's smallest with much to compute.
SIZES = steps.SIZES | {
    "124M": {"dim": 768, "layers": 12, "batch": 8, "seq": 1024, "vocab": 50304, "heads": 12},
}
TINY = "--dim 64 --layers 2 --heads 2 --batch 2 --seq 32 --vocab 64".split()
# Losses of the same arithmetic in the same order but for kernels that may differ.
LOSSES_AGREE = 1e-3
SANITIZER_FOUND_ERRORS = 9

PASSED, FAILED, HUNG, NO_DEVICE, LEFT_OUT, NOT_THERE = (
    "passed", "failed", "hung", "no device", "left out", "not there")
REFUSES = re.compile("no CUDA device")  # of tests, fsdp and bench/peers
ON_CPU = re.compile("^Training on cpu$", re.MULTILINE)  # of programs that take what there is


@dataclasses.dataclass
class Part:
    name: str
    limit: int  # seconds
    command: list  # empty: a program is not there
    read: Callable[[str], dict]
    environment: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Result:
    name: str
    outcome: str
    why: str = ""
    seconds: float = 0.0
    figures: dict = dataclasses.field(default_factory=dict)
    output: str = ""


def the_only_rank():
    """Environment of a rank that is a job of its own; the port is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)}


def all_parts(root, sanitizer):
    """In the order of what they prove. root: the bundle; sanitizer: the path of compute-sanitizer, or None."""
    programs = root / "bin"
    peer = [sys.executable, root / "bench/peers/gpt_step.py", "--engine", "fsdp2", "--device", "cuda"]
    ours = [programs / "fsdp-bench", "step", "--world", "1", "--backend", "nccl"]
    launched = [programs / "fsdprun", "--no-prefix", "--nproc_per_node", "1"]
    parts = [Part("CUDA tests", 100, [programs / "cuda_tests"], readers.cuda_tests)]
    for size in SIZES:
        parts.append(Part(f"step {size}", 60, [*ours, *flags(size)], readers.step, the_only_rank()))
        parts.append(Part(f"step {size}, FSDP2", 60, [*peer, *flags(size)], readers.step, the_only_rank()))
    bound = ["--versus", "none", "--pairs", "30", *flags("9M")]  # not a rank yet: a fork becomes one
    mnist = [programs / "fsdp-mnist", "--epochs", "2", "--train-samples", "2000"]
    gpt = [programs / "fsdp-gpt", "--steps", "60", "--eval-every", "20", "--sample", "40", "--log-seconds", "5"]
    parts += [Part("step 9M : bound", 60, [*ours, *bound], readers.versus),
              Part("mnist", 60, [*launched, *mnist], readers.mnist),
              Part("gpt", 60, [*launched, *gpt], readers.gpt)]
    for tool, reader in (("memcheck", readers.memcheck), ("racecheck", readers.racecheck)):
        watched = [sanitizer, "--tool", tool, "--error-exitcode", SANITIZER_FOUND_ERRORS, *ours, *TINY, "--steps", "3"]
        parts.append(Part(tool, 75, watched if sanitizer else [], reader, the_only_rank()))
    return parts


def flags(size):
    return [word for name, value in SIZES[size].items() for word in (f"--{name}", value)]


def judge(part, ended, has_device):
    """What the end of a part means."""
    result = Result(part.name, FAILED, seconds=round(ended.seconds, 1), output=ended.output)
    lines = ended.output.strip().splitlines() or ["nothing was printed"]
    if ended.status is None:
        result.outcome, result.why = HUNG, f"killed after {ended.seconds:.0f} s"
    elif REFUSES.search(ended.output) or (ended.status == 0 and ON_CPU.search(ended.output)):
        result.outcome, result.why = NO_DEVICE, "starts, and finds no CUDA device"
        if has_device:
            result.outcome, result.why = FAILED, "does not see the GPU that torch sees"
    elif ended.status != 0:
        result.why = f"status {ended.status}: {lines[-1]}"
    else:
        try:
            result.figures = part.read(ended.output)
            result.outcome = PASSED
        except (ValueError, KeyError) as error:
            result.why = f"printed no result: {error}"
    return result


def compare_steps(results):
    """Ours beside FSDP2's, of each size of which both passed."""
    by_name = {result.name: result.figures for result in results if result.outcome == PASSED}
    for size in SIZES:
        ours, theirs = by_name.get(f"step {size}"), by_name.get(f"step {size}, FSDP2")
        if ours and theirs:
            yield compare_step(f"step {size}, ours : FSDP2", ours, theirs)


def compare_step(name, ours, theirs):
    difference = max(abs(a - b) / abs(b) for a, b in zip(ours["losses"], theirs["losses"], strict=True))
    agree = difference <= LOSSES_AGREE
    return Result(name, PASSED if agree else FAILED, "" if agree else "losses differ", figures={
        "tokens_per_s": round(ours["tokens_per_s"] / theirs["tokens_per_s"], 3),
        "device_mb": round(ours["device_mb"] / theirs["device_mb"], 3), "losses_differ": float(f"{difference:.1e}")})
