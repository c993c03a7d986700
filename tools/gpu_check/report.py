"""The report of a run of a bundle: a JSON file, a table and an exit status."""

import dataclasses
import json

import parts

OUTPUT_KEPT = 6000  # number of characters of a part's output
STATUS_FAILED, STATUS_NO_DEVICE = 1, 77


def as_json(bundle, machine, results, seconds):
    kept = [dataclasses.asdict(result) | {"output": result.output[-OUTPUT_KEPT:]} for result in results]
    return json.dumps({"bundle": bundle, "machine": machine, "seconds": round(seconds, 1), "parts": kept}, indent=1)


def figures_text(figures):
    """Returns the short figures as text. The long ones are in the JSON file."""
    short = {name: value for name, value in figures.items() if name != "losses"}
    return ", ".join(f"{name} {value}" for name, value in short.items())


def cells_of(result):
    return result.name, result.outcome, f"{result.seconds:.1f}", result.why or figures_text(result.figures)


def as_line(result):
    return "gpu_check: {}: {}, {} s; {}".format(*cells_of(result))


def as_table(results):
    rows = [("part", "outcome", "seconds", ""), *map(cells_of, results)]
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def status(results):
    """Returns 0 if every part passed, or only programs are missing. Otherwise the worst outcome decides."""
    outcomes = {result.outcome for result in results}
    if outcomes & {parts.FAILED, parts.HUNG, parts.LEFT_OUT}:
        return STATUS_FAILED
    return STATUS_NO_DEVICE if parts.NO_DEVICE in outcomes else 0
