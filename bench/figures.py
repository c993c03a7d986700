"""Makes tables from the results of rounds."""

import math
import statistics
import sys

# This engine shards as ours does. Other engines hold everything on each rank.
SHARDED_PEER = "fsdp2"
# This suffix marks a run in fp32 beside runs of low precision.
FP32 = ", fp32"


def with_range(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def ratios(rounds, key, peer):
    """Returns the ratios ours : the peer's within each round, because a machine's speed changes from minute to
    minute."""
    return [results["ours"][key] / results[peer][key] for results in rounds]


def speeds(rounds, key, peer):
    """Returns ratios of speeds, from values in seconds."""
    return [results[peer][key] / results["ours"][key] for results in rounds]


def largest_difference(ours, torchs):
    """Returns the largest relative difference between two lists of losses."""
    if len(ours) != len(torchs):
        sys.exit(f"compare: found {len(ours)} losses of ours and {len(torchs)} of torch's; the peer must obey --steps.")
    if not all(map(math.isfinite, [*ours, *torchs])):
        sys.exit(f"compare: expected finite losses, found {ours} of ours and {torchs} of torch's.")
    return max(abs(a - b) / abs(b) for a, b in zip(ours, torchs))


def losses_agree(rounds, base="ours"):
    differences = [largest_difference(results[base]["losses"], result["losses"])
                   for results in rounds for name, result in results.items() if name != base]
    return f"{max(differences):.1e}"


def losses_repeat(rounds):
    first = rounds[0]["ours"]["losses"]
    return "yes" if all(results["ours"]["losses"] == first for results in rounds) else "NO"


def against_bound(result):
    low, high = result["ratio_95"]
    return f"{result['ratio']:.3f} ({low:.3f} to {high:.3f})"


def of_steps(rounds, bound, peers):
    """Returns {figure: text} of one size. `rounds` are results of steps.take_round, and `bound` is the result of
    fsdp-bench step --versus none."""
    cells = {f"tokens/s, ours : torch-{peer}": with_range(ratios(rounds, "tokens_per_s", peer)) for peer in peers}
    for peer in peers:  # A step as short as the bound would reach this.
        most = statistics.median(ratios(rounds, "tokens_per_s", peer)) * bound["ratio"]
        cells[f"tokens/s, at the bound : torch-{peer}"] = f"{most:.3f}"
    if SHARDED_PEER in peers:
        cells[f"PSS of rank 0, ours : torch-{SHARDED_PEER}"] = with_range(ratios(rounds, "pss_mb", SHARDED_PEER))
    cells["our step : bound"] = against_bound(bound)
    cells["losses, largest relative difference"] = losses_agree(rounds)
    cells["our losses the same bits in every round"] = losses_repeat(rounds)
    return cells


def of_low_steps(rounds, precision):
    """Returns {figure: text} of one size with a policy of mixed precision, also compared with fp32."""
    peer = SHARDED_PEER
    cells = {f"tokens/s, ours : torch-{peer}": with_range(ratios(rounds, "tokens_per_s", peer))}
    for name, run in (("ours", "ours"), (f"torch-{peer}", peer)):
        cells[f"tokens/s, {name}, {precision} : fp32"] = with_range(
            [results[run]["tokens_per_s"] / results[run + FP32]["tokens_per_s"] for results in rounds])
    cells[f"PSS of rank 0, ours : torch-{peer}"] = with_range(ratios(rounds, "pss_mb", peer))
    for what, one, other in ((f"ours and torch-{peer}'s", "ours", peer),
                             (f"torch-{peer}'s and its fp32", peer, peer + FP32)):
        cells[f"losses, largest relative difference, {what}"] = "{:.1e}".format(
            max(largest_difference(results[one]["losses"], results[other]["losses"]) for results in rounds))
    cells["our losses the same bits in every round"] = losses_repeat(rounds)
    return cells


def of_checkpoints(rounds):
    """Returns {figure: text} of one size. `rounds` are results of checkpoints.take_round."""
    cells = {f"speed, {what}, ours : torch-dcp": with_range(
        [results["dcp"][what]["seconds"] / results["ours"][what]["seconds"] for results in rounds])
             for what in ("save", "load")}
    for what, plain in (("save", "write"), ("load", "read")):
        cells[f"speed, {what}, ours : a plain {plain} of the same bytes"] = with_range(
            [results["ours"][what]["of_plain"] for results in rounds])
    for name, result in rounds[-1].items():
        cells[f"MB on the disk, {name if name == 'ours' else 'torch-' + name}"] = f"{result['megabytes']:.1f}"
    return cells


def with_quartiles(values, digits):
    values = sorted(values)
    from_end = len(values) // 4
    return (f"{statistics.median(values):.{digits}f} ({values[from_end]:.{digits}f} to "
            f"{values[-1 - from_end]:.{digits}f})")


def of_overhead(rounds):
    """Returns {figure: text} of one number of groups. `rounds` are results of overhead.take_round."""
    cells = {}
    for key, what in (("plain", "step, unsharded"), ("step", "step"), ("overhead", "overhead")):
        for run, name in (("ours", "ours"), (SHARDED_PEER, f"torch-{SHARDED_PEER}")):
            cells[f"us, {what}, {name}"] = with_quartiles([results[run][key] for results in rounds], 1)
    cells[f"overhead, ours : torch-{SHARDED_PEER}"] = with_quartiles(ratios(rounds, "overhead", SHARDED_PEER), 4)
    return cells


def of_trainings(rounds, peers, training):
    """Returns {figure: text} of one program. `rounds` are results of trainings.take_round."""
    cells = {}
    for key, what in (("seconds", "training"), ("whole_seconds", "whole")):
        for peer in peers:
            cells[f"speed, {what}, ours : torch-{peer}"] = with_range(speeds(rounds, key, peer))
    for peer in peers if training.compares_memory else ():
        cells[f"RSS of the largest process at its peak, ours : torch-{peer}"] = with_range(
            ratios(rounds, "peak_rss_mb", peer))
    for name in ["ours", *peers]:
        cells[f"{training.score}, {name if name == 'ours' else 'torch-' + name}"] = with_range(
            [results[name]["score"] for results in rounds])
    cells["losses, largest relative difference"] = losses_agree(rounds)
    return cells


def lines_of(columns):
    """Returns rows of cells. `columns` is {size: {figure: text}}; all sizes have the same figures."""
    figures = next(iter(columns.values()))
    return [["figure", *columns], *([figure, *(cells[figure] for cells in columns.values())] for figure in figures)]


def as_text(columns):
    rows = lines_of(columns)
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def as_markdown(columns):
    heading, *rows = ["| " + " | ".join(row) + " |" for row in lines_of(columns)]
    return "\n".join([heading, "|---" * (1 + len(columns)) + "|", *rows])
