"""The parts that run on a GPU: their commands, their time limits, and how their results are judged."""

import dataclasses
import re
import socket
import sys
from collections.abc import Callable

import readers
import steps

# The sizes are those of bench/compare, which show the cost of launches, and the smallest GPT-2, which has much to
# compute.
SIZES = steps.SIZES | {
    "124M": {"dim": 768, "layers": 12, "batch": 8, "seq": 1024, "vocab": 50304, "heads": 12},
}
# The largest GPT-2. Its training state needs more memory than its computation, so rows are in host memory.
LARGEST = "--dim 1600 --layers 48 --heads 25 --batch 1 --seq 1024 --vocab 50304".split()
BF16 = ("--precision", "bf16")
# Peak operations per second of bf16 matrices without sparsity, keyed by a part of the device's name.
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12}
TINY = "--dim 64 --layers 2 --heads 2 --batch 2 --seq 32 --vocab 64".split()
# Largest relative difference of losses if the arithmetic and its order are the same, but kernels differ.
LOSSES_AGREE = 1e-3
SANITIZER_FOUND_ERRORS = 9

PASSED, FAILED, HUNG, NO_DEVICE, LEFT_OUT, NOT_THERE = (
    "passed", "failed", "hung", "no device", "left out", "not there")
REFUSES = re.compile("no CUDA device")  # printed by the tests, fsdp and bench/peers
ON_CPU = re.compile("^Training on cpu$", re.MULTILINE)  # printed by programs that use any device


@dataclasses.dataclass
class Part:
    name: str
    limit: int  # seconds
    command: list  # empty if a program is missing
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
    """Returns the environment of a rank that is a job of its own. Its port is free at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)}


def all_parts(root, sanitizer):
    """Returns the parts, the most basic ones first. `root` is the bundle; `sanitizer` is the path of compute-sanitizer,
    or None."""
    programs = root / "bin"
    peer = [sys.executable, root / "bench/peers/gpt_step.py", "--engine", "fsdp2", "--device", "cuda"]
    ours = [programs / "fsdp-bench", "step", "--world", "1", "--backend", "nccl"]
    launched = [programs / "fsdprun", "--no-prefix", "--nproc_per_node", "1"]
    parts = [Part("CUDA tests", 100, [programs / "cuda_tests"], readers.cuda_tests)]
    plain = ["--versus", "none", "--pairs", "30", *flags("9M")]  # has no environment of a rank, so it forks one
    parts.append(Part("step 9M : plain", 60, [*ours, *plain], readers.versus))
    for size in SIZES:
        precisions = ("", " bf16") if size == "124M" else ("",)
        for precision in precisions:
            words = [*flags(size), *(BF16 if precision else ())]
            name = f"step {size}{precision}"
            parts.append(Part(name, 60, [*ours, *words], readers.step, the_only_rank()))
            parts.append(Part(f"{name}, FSDP2", 60, [*peer, *words], readers.step, the_only_rank()))
            if size == "124M":
                parts.append(Part(f"{name}, plain", 60, [*ours, "--engine", "none", *words], readers.step,
                                  the_only_rank()))
                parts.append(Part(f"{name}, eager", 60, [*peer[:2], "--engine", "none", *peer[4:], *words],
                                  readers.step, the_only_rank()))
    overhead = [programs / "fsdp-bench", "overhead", "--world", "1", "--backend", "nccl", "--groups", "10,100", "--json"]
    offload = [*ours, *LARGEST, *BF16, "--cpu-offload", "--checkpoint-activations", "--steps", "4"]
    mnist = [programs / "fsdp-mnist", "--epochs", "2", "--train-samples", "2000"]
    gpt = [programs / "fsdp-gpt", "--steps", "60", "--eval-every", "20", "--sample", "40", "--log-seconds", "5"]
    parts += [Part("overhead", 60, overhead, readers.overhead),
              Part("step 1.5B bf16 with offload", 90, offload, readers.step, the_only_rank()),
              Part("mnist", 60, [*launched, *mnist], readers.mnist),
              Part("gpt", 60, [*launched, *gpt], readers.gpt)]
    for tool, reader in (("memcheck", readers.memcheck), ("racecheck", readers.racecheck)):
        watched = [sanitizer, "--tool", tool, "--error-exitcode", SANITIZER_FOUND_ERRORS, *ours, *TINY, "--steps", "3"]
        parts.append(Part(tool, 75, watched if sanitizer else [], reader, the_only_rank()))
    return parts


def flags(size):
    return [word for name, value in SIZES[size].items() for word in (f"--{name}", value)]


def judge(part, ended, has_device):
    """Returns the result of a part, judged by its end."""
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


def operations_per_token(size):
    """Returns the operations of forward and backward, counted as in PaLM: six per weight and token, and twelve per pair
    of tokens and width."""
    of = SIZES[size]
    weights = of["vocab"] * of["dim"] + of["layers"] * 12 * of["dim"] ** 2
    return 6 * weights + 12 * of["layers"] * of["dim"] * of["seq"]


def add_utilisation(results, devices):
    """Adds to each bf16 step the part of the first device's bf16 peak that it uses, if that peak is known."""
    peaks = [peak for name, peak in PEAKS.items() if devices and name in devices[0]]
    for result in results:
        if peaks and " bf16" in result.name and result.outcome == PASSED and result.name.split()[1] in SIZES:
            per_second = result.figures["tokens_per_s"] * operations_per_token(result.name.split()[1])
            result.figures["mfu"] = round(per_second / peaks[0], 3)


def compare_steps(results):
    """Yields comparisons of fsdp's steps with those of others, for each step that both passed."""
    by_name = {result.name: result.figures for result in results if result.outcome == PASSED}
    for name, figures in by_name.items():
        for other in ("FSDP2", "plain", "eager"):
            if theirs := by_name.get(f"{name}, {other}"):
                # Two programs round bf16 differently.
                yield compare_step(f"{name}, ours : {other}", figures, theirs, 3e-2 if "bf16" in name else LOSSES_AGREE)


def compare_step(name, ours, theirs, tolerance):
    difference = max(abs(a - b) / abs(b) for a, b in zip(ours["losses"], theirs["losses"], strict=True))
    agree = difference <= tolerance
    return Result(name, PASSED if agree else FAILED, "" if agree else "losses differ", figures={
        "tokens_per_s": round(ours["tokens_per_s"] / theirs["tokens_per_s"], 3),
        "device_mb": round(ours["device_mb"] / theirs["device_mb"], 3), "losses_differ": float(f"{difference:.1e}")})
