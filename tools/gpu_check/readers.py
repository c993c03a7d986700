"""Reads figures from the output of programs. A reader raises ValueError if there are none."""

import json
import math
import re

import trainings


def number_after(pattern, output):
    found = re.findall(pattern, output, re.MULTILINE)
    if not found:
        raise ValueError(f"nothing like {pattern!r} was printed")
    return float(found[-1])


def only(results):
    if len(results) != 1:
        raise ValueError(f"expected one result, found {len(results)}")
    return results[0]


def require_finite(losses):
    if not losses or not all(map(math.isfinite, losses)):
        raise ValueError(f"expected finite losses, found {losses}")


def cuda_tests(output):
    counts = {word.lower(): int(number) for word, number in
              re.findall(r"^\[  (PASSED|SKIPPED) +\] (\d+) tests?", output, re.MULTILINE)}
    if not counts.get("passed"):
        raise ValueError("no test passed")
    return counts


def step(output):
    """Reads the output of fsdp-bench step or bench/peers/gpt_step.py."""
    result = only([json.loads(line) for line in output.splitlines() if line.startswith("{")])
    require_finite(result["losses"])
    return {key: result[key] for key in ("ms_per_step", "tokens_per_s", "device_mb", "losses")}


def versus(output):
    result = only([json.loads(line) for line in output.splitlines() if line.startswith("{")])
    return {key: result[key] for key in ("ratio", "ratio_95", "ms_per_step")}


def overhead(output):
    return only([json.loads(line) for line in output.splitlines() if line.startswith("{")])


def mnist(output):
    result = only(trainings.mnist_results(output))
    require_finite(result["losses"])
    return {"seconds": result["seconds"], "accuracy": result["accuracy"], "losses": result["losses"]}


def gpt(output):
    result = only(trainings.gpt_results(output))
    losses = result["validation_losses"]
    require_finite(losses)
    if losses[-1] >= losses[0]:
        raise ValueError(f"expected validation losses that fall, found {losses}")
    return {"seconds": round(result["seconds"], 2), "perplexity": result["perplexity"], "losses": losses}


def memcheck(output):
    return {"errors": int(number_after(r"ERROR SUMMARY: (\d+) errors?", output))}


def racecheck(output):
    return {"hazards": int(number_after(r"RACECHECK SUMMARY: (\d+) hazards?", output))}
