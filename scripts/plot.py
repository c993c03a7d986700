"""Draws what --metrics and --trace wrote.

    scripts/plot runs OUT.png [NAME=]METRICS.jsonl...    loss, throughput and memory of several runs in one picture
    scripts/plot step OUT.png TRACE.json [--step N]      what each rank does in a step, and what of its communication
                                                         goes on while it computes
"""

import argparse
import collections
import json
import pathlib
import sys

CLASSES = ("rows", "whole", "gradient", "optimizer", "activation")
# Of the compute thread, by what the names of events begin with; what comes later lies on top.
PARTS = {"forward": "#b8d4f0", "backward": "#c9e3b4", "optimizer step": "#f3d9a4", "unshard": "#8a8fd0",
         "prefetch": "#b39ddb", "reduce": "#6fae9b", "wait": "#d9534f"}
COMMUNICATION = {"all_gather": "#5b6abf", "reduce_scatter": "#2f8f6f", "all_reduce": "#c28f2c"}
OTHER = "#999999"


def read_metrics(path):
    """Lines by step; a step that a resumed run did again is that of the last line."""
    steps = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        steps.setdefault(record["step"], {}).update(record)
    return [steps[step] for step in sorted(steps)]


def series(records, name, scale=1):
    """Steps and values of a metric where it is a number."""
    points = [(record["step"], record[name] * scale) for record in records
              if isinstance(record.get(name), (int, float))]
    return [step for step, _ in points], [value for _, value in points]


def throughput_of(records):
    names = {name for record in records for name in record if name.endswith("_per_second")}
    return min(names, default=None)


def held_bytes(records):
    """Steps, and what all classes held at most together: the sum of their peaks."""
    steps, sums = [], []
    for record in records:
        peaks = [record[f"peak_bytes/{name}"] for name in CLASSES if f"peak_bytes/{name}" in record]
        if peaks:
            steps.append(record["step"])
            sums.append(sum(peaks) / 1e6)
    return steps, sums


def draw_runs(pyplot, out, runs):
    figure, (loss, speed, memory, classes) = pyplot.subplots(1, 4, figsize=(18, 4.2), constrained_layout=True)
    last = {}
    for name, records in runs.items():
        mark = "o" if len(records) < 15 else None
        loss.plot(*series(records, "loss"), label=name, marker=mark)
        unit = throughput_of(records)
        if unit:
            speed.plot(*series(records, unit), label=name, marker=mark, linewidth=1)
            speed.set_ylabel(unit.replace("_", " "))
        memory.plot(*held_bytes(records), label=name, marker=mark)
        last[name] = {part: max((record.get(f"peak_bytes/{part}", 0) for record in records), default=0) / 1e6
                      for part in CLASSES}
    below = collections.Counter()
    for part in CLASSES:
        values = [last[name][part] for name in last]
        classes.bar(list(last), values, bottom=[below[name] for name in last], label=part, width=0.6)
        below.update({name: value for name, value in zip(last, values)})
    for axes, title in ((loss, "Loss"), (speed, "Throughput"), (memory, "Peak memory of rank 0 (MB)"),
                        (classes, "Peaks by class (MB)")):
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        if axes is not classes:
            axes.set_xlabel("step")
    speed.set_ylim(bottom=0)
    memory.set_ylim(bottom=0)
    figure.savefig(out, dpi=110)


def intervals(trace, category, pid):
    return [event for event in trace if event["ph"] == "X" and event["pid"] == pid and event.get("cat") == category]


def steps_of(trace, pid):
    """[begin, end) of each step of a rank: from the end of one optimizer step to the end of the next one."""
    ends = sorted(event["ts"] + event["dur"] for event in intervals(trace, "compute", pid)
                  if event["args"]["what"] == "optimizer step")
    return list(zip(ends, ends[1:]))


def joined(parts):
    """Disjoint stretches, ascending, that cover what `parts`, (begin, end), cover."""
    result = []
    for begin, end in sorted(parts):
        if result and begin <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([begin, end])
    return result


def length(parts):
    return sum(end - begin for begin, end in parts)


def common(a, b):
    """What both cover; each disjoint and ascending."""
    result, j = [], 0
    for begin, end in a:
        while j < len(b) and b[j][1] <= begin:
            j += 1
        k = j
        while k < len(b) and b[k][0] < end:
            result.append((max(begin, b[k][0]), min(end, b[k][1])))
            k += 1
    return result


def hidden_share(events, step):
    """Of the time in which something is communicated, the part in which the compute thread does not wait."""
    def within(chosen):
        return joined((max(e["ts"], step[0]), min(e["ts"] + e["dur"], step[1])) for e in chosen
                      if e["ts"] < step[1] and e["ts"] + e["dur"] > step[0])

    communication = within(e for e in events if e["cat"] == "communication")
    waits = within(e for e in events if e["cat"] == "compute" and e["args"]["what"].startswith("wait"))
    total = length(communication)
    return 1 - length(common(communication, waits)) / total if total else None


def colour(event, colours):
    return next((colours[name] for name in colours if event["args"]["what"].startswith(name)), OTHER)


def draw_step(pyplot, out, trace, number):
    ranks = sorted({event["pid"] for event in trace if event["ph"] == "X"})
    steps = {rank: steps_of(trace, rank) for rank in ranks}
    if not all(steps.values()):
        sys.exit("plot: the trace has no whole step: two optimizer steps of fsdp::optim and what lies between them")
    begin = min(steps[rank][number][0] for rank in ranks)
    figure, axes = pyplot.subplots(figsize=(16, 1.2 + 1.5 * len(ranks)), constrained_layout=True)
    labels, shares = {}, []
    for row, rank in enumerate(ranks):
        step = steps[rank][number]
        events = [event for event in trace if event["ph"] == "X" and event["pid"] == rank and "what" in event["args"]]
        for event in events:
            if event["ts"] + event["dur"] <= step[0] or event["ts"] >= step[1]:
                continue
            is_compute = event["cat"] == "compute"
            colours = PARTS if is_compute else COMMUNICATION
            y = 3 * row + (0 if is_compute else 1)
            order = 1 + (list(PARTS).index(next((p for p in PARTS if event["args"]["what"].startswith(p)), "forward"))
                         if is_compute else 0)
            start = max(event["ts"], step[0])
            end = min(event["ts"] + event["dur"], step[1])
            name = next((n for n in colours if event["args"]["what"].startswith(n)), "other")
            bar = axes.barh(y, (end - start) / 1000, left=(start - begin) / 1000, height=0.8,
                            color=colour(event, colours), zorder=order, edgecolor="white", linewidth=0.2)
            labels.setdefault(name, bar)
        share = hidden_share(events, step)
        if share is not None:
            shares.append(share)
            axes.text((step[1] - begin) / 1000, 3 * row + 2, f"{100 * share:.0f} % hidden", ha="right", va="center",
                      fontsize=8)
    axes.set_yticks([3 * row + part for row in range(len(ranks)) for part in (0, 1)],
                    [f"rank {rank} {what}" for rank in ranks for what in ("computes", "communicates")])
    axes.set_ylim(3 * len(ranks) - 0.5, -0.7)  # the first rank on top
    axes.set_xlabel("ms")
    title = f"Step {number + 1 if number >= 0 else len(steps[ranks[0]]) + number + 1} of the trace"
    if shares:
        title += (f": {100 * sum(shares) / len(shares):.0f} % of the time in which ranks communicate "
                  "they do not wait for it")
    axes.set_title(title)
    axes.legend(labels.values(), labels.keys(), fontsize=8, ncols=len(labels), loc="upper center",
                bbox_to_anchor=(0.5, -0.14 - 0.2 / len(ranks)))
    figure.savefig(out, dpi=110)


def run_argument(text):
    name, _, path = text.rpartition("=")
    return name or pathlib.Path(path).stem, pathlib.Path(path)


def parse(words):
    parser = argparse.ArgumentParser(prog="scripts/plot", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("runs", help="loss, throughput and memory of several runs")
    runs.add_argument("out", type=pathlib.Path)
    runs.add_argument("metrics", nargs="+", type=run_argument, metavar="[NAME=]METRICS.jsonl")
    step = commands.add_parser("step", help="what each rank does in a step")
    step.add_argument("out", type=pathlib.Path)
    step.add_argument("trace", type=pathlib.Path, metavar="TRACE.json")
    step.add_argument("--step", type=int, help="which whole step of the trace, from 1 (the last one)")
    return parser.parse_args(words)


def main(words):
    arguments = parse(words)
    try:
        import matplotlib
    except ImportError:
        print("plot: matplotlib is not installed; scripts/setup installs it", file=sys.stderr)
        return 77
    matplotlib.use("Agg")
    from matplotlib import pyplot
    try:
        if arguments.command == "runs":
            runs = {name: read_metrics(path) for name, path in arguments.metrics}
            draw_runs(pyplot, arguments.out, runs)
        else:
            trace = json.loads(arguments.trace.read_text(encoding="utf-8"))["traceEvents"]
            draw_step(pyplot, arguments.out, trace, arguments.step - 1 if arguments.step else -1)
    except (OSError, ValueError, KeyError, IndexError) as error:
        print(f"plot: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
