"""Draws what --metrics and --trace wrote, and what fsdp-bench schedule printed.

    scripts/plot runs OUT.png [NAME=]METRICS.jsonl...    loss, throughput and memory of several runs in one picture
    scripts/plot step OUT.png TRACE.json [--step N]      what each rank does in a step, and how much of the time in
                                                         which it communicates it does not wait
    scripts/plot schedule OUT.png SCHEDULE.json          what each rank of a pipeline does at which time
                                                         (fsdp-bench schedule --json)
    scripts/plot choices OUT.png CHOICES.json            speed and memory of fsdp and PyTorch (bench/compare --picture)
"""

import argparse
import json
import pathlib
import sys

CLASSES = ("rows", "whole", "gradient", "optimizer", "activation")
CLASS_COLOURS = ("#4c72b0", "#8fb0d9", "#dd8452", "#55a868", "#bbbbbb")
# Colours of the compute thread's events, by the beginnings of their names. Later entries are drawn on top.
PARTS = {"forward": "#b8d4f0", "backward": "#c9e3b4", "optimizer step": "#f3d9a4", "unshard": "#8a8fd0",
         "prefetch": "#b39ddb", "reduce": "#6fae9b", "wait": "#d9534f"}
COMMUNICATION = {"all_gather": "#5b6abf", "reduce_scatter": "#2f8f6f", "all_reduce": "#c28f2c"}
OTHER = "#999999"


def read_metrics(path):
    """Returns the records of a file by step. If a resumed run repeated a step, its last record counts. Seconds continue
    where the run resumed.

    A run has resumed where its clock or its steps go back. A resumed run is not recognised if it continues with the
    next step and its clock is later than that of the last line.
    """
    steps, earlier, newest, last_step = {}, 0, 0, float("-inf")
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        resumed = False
        if "seconds" in record:
            resumed = earlier + record["seconds"] < newest or record["step"] < last_step
            if resumed:
                earlier = newest
            newest = record["seconds"] = earlier + record["seconds"]
        if record["step"] == last_step and not resumed:  # such as a validation, which ends later than its step
            record.pop("seconds", None)
        last_step = record["step"]
        steps.setdefault(record["step"], {}).update(record)
    return [steps[step] for step in sorted(steps)]


def series(records, name, over="step"):
    """Returns the values of a metric that are numbers, after their steps or seconds."""
    points = [(record[over], record[name]) for record in records
              if over in record and isinstance(record.get(name), (int, float))]
    return [x for x, _ in points], [value for _, value in points]


def throughput_of(records):
    names = {name for record in records for name in record if name.endswith("_per_second")}
    return min(names, default=None)


def megabytes(records, kind, over="step"):
    """Returns the steps or seconds, and the sums over the classes of `kind`: "bytes" after the step, or "peak_bytes"
    so far."""
    xs, sums = [], []
    for record in records:
        values = [record[f"{kind}/{name}"] for name in CLASSES if f"{kind}/{name}" in record]
        if values and over in record:
            xs.append(record[over])
            sums.append(sum(values) / 1e6)
    return xs, sums


def draw_lines(loss, speed, memory, runs, over):
    for number, (name, records) in enumerate(runs.items()):
        # Lines have different widths, so that lines that coincide can be seen.
        style = {"color": f"C{number}", "marker": "o" if len(records) < 15 else None, "markersize": 3}
        width = 1.2 + 1.4 * (len(runs) - 1 - number)
        loss.plot(*series(records, "loss", over), label=name, linewidth=width, **style)
        unit = throughput_of(records)
        if unit:
            speed.plot(*series(records, unit, over), linewidth=1, **style)
            speed.set_ylabel(unit.replace("_per_second", "/s, of all ranks"))
        memory.plot(*megabytes(records, "bytes", over), linewidth=width, **style)
        memory.plot(*megabytes(records, "peak_bytes", over), linewidth=1, linestyle="--", **{**style, "marker": None})
    for axes, title in ((loss, "Loss"), (speed, "Throughput"), (memory, "Memory of rank 0")):
        axes.set_title(title)
        axes.set_xlabel(over)
    loss.set_ylabel("loss of the joined batch")
    memory.set_ylabel("MB after the step; dashed: at most so far")
    for axes in (speed, memory):
        axes.set_ylim(bottom=0, top=1.05 * axes.get_ylim()[1])


def draw_classes(axes, runs):
    """Draws the peak of each class of bytes on rank 0, stacked. The classes do not reach their peaks at the same
    time."""
    below = dict.fromkeys(runs, 0)
    for part, colour_of_part in zip(CLASSES, CLASS_COLOURS):
        peaks = {name: max((record.get(f"peak_bytes/{part}", 0) for record in records), default=0) / 1e6
                 for name, records in runs.items()}
        if any(peaks.values()):
            axes.bar(list(runs), list(peaks.values()), bottom=list(below.values()), label=part, width=0.6,
                     color=colour_of_part)
        below = {name: below[name] + peaks[name] for name in runs}
    for place, total in enumerate(below.values()):
        axes.text(place, total, f"{total:.3g} MB", ha="center", va="bottom", fontsize=9)
    axes.set_title("Peaks of rank 0, by class")
    axes.set_ylabel("MB")
    axes.margins(y=0.1)
    axes.set_xlim(-0.75, len(runs) - 0.25)
    axes.legend(*(reversed(part) for part in axes.get_legend_handles_labels()), fontsize=9, loc="center left",
                bbox_to_anchor=(1, 0.5), frameon=False)


def draw_runs(pyplot, out, runs, over):
    figure, ((loss, speed), (memory, classes)) = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained")
    draw_lines(loss, speed, memory, runs, over)
    draw_classes(classes, runs)
    for axes in (loss, speed, memory, classes):
        axes.grid(alpha=0.3, axis="y" if axes is classes else "both")
        axes.set_axisbelow(True)
    figure.legend(*loss.get_legend_handles_labels(), loc="outside upper center", ncols=len(runs), frameon=False)
    figure.savefig(out, dpi=100)


def intervals(trace, category, pid):
    return [event for event in trace if event["ph"] == "X" and event["pid"] == pid and event.get("cat") == category]


def steps_of(trace, pid):
    """Returns [begin, end) of each step of a rank, from the end of one optimizer step to the end of the next one."""
    ends = sorted(event["ts"] + event["dur"] for event in intervals(trace, "compute", pid)
                  if event["args"]["what"] == "optimizer step")
    return list(zip(ends, ends[1:]))


def joined(parts):
    """Returns disjoint intervals in ascending order that cover the same times as `parts`, which are pairs (begin,
    end)."""
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
    """Returns the times that both lists of intervals cover. Both must be disjoint and in ascending order."""
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
    """Returns the part of the time with communication in which the compute thread does not wait."""
    def within(chosen):
        return joined((max(e["ts"], step[0]), min(e["ts"] + e["dur"], step[1])) for e in chosen
                      if e["ts"] < step[1] and e["ts"] + e["dur"] > step[0])

    communication = within(e for e in events if e["cat"] == "communication")
    waits = within(e for e in events if e["cat"] == "compute" and e["args"]["what"].startswith("wait"))
    total = length(communication)
    return 1 - length(common(communication, waits)) / total if total else None


def kind_of(event, kinds):
    return next((name for name in kinds if event["args"]["what"].startswith(name)), "other")


def draw_events(axes, events, step, begin, row):
    """Draws a rank's events within `step`, downwards from `row`. Returns the names of the rows and the bars by kind
    of event."""
    within = [event for event in events if event["ts"] < step[1] and event["ts"] + event["dur"] > step[0]]
    found = {kind_of(event, COMMUNICATION) for event in within if event["cat"] != "compute"}
    names, bars = ["computes", *(kind for kind in (*COMMUNICATION, "other") if kind in found)], {}
    for event in within:
        start, end = max(event["ts"], step[0]), min(event["ts"] + event["dur"], step[1])
        kinds = PARTS if event["cat"] == "compute" else COMMUNICATION
        kind = kind_of(event, kinds)
        place = row + (0 if event["cat"] == "compute" else names.index(kind))
        bar = axes.barh(place, (end - start) / 1000, left=(start - begin) / 1000, height=0.8,
                        color=kinds.get(kind, OTHER), zorder=1 + (list(PARTS).index(kind) if kind in PARTS else 0),
                        edgecolor="white", linewidth=0.2)
        bars.setdefault(kind, bar)
        if event["cat"] != "compute" and end - start > 0.06 * (step[1] - step[0]):
            axes.text((start + end - 2 * begin) / 2000, place, event["args"].get("group", ""), ha="center",
                      va="center", fontsize=7, color="white", clip_on=True)
    return names, bars


def draw_step(pyplot, out, trace, number):
    ranks = sorted({event["pid"] for event in trace if event["ph"] == "X"})
    steps = {rank: steps_of(trace, rank) for rank in ranks}
    if not all(steps.values()):
        sys.exit("plot: expected a trace with a whole step, i.e. with two optimizer steps of fsdp::optim, found none")
    begin = min(steps[rank][number][0] for rank in ranks)
    figure, axes = pyplot.subplots(figsize=(11, 1.4 + 1.1 * len(ranks)), layout="constrained")
    bars, labels, shares, row = {}, {}, [], 0
    for rank in ranks:
        step = steps[rank][number]
        events = [event for event in trace if event["ph"] == "X" and event["pid"] == rank and "what" in event["args"]]
        names, of_rank = draw_events(axes, events, step, begin, row)
        bars = of_rank | bars
        labels |= {row + place: f"rank {rank}: {name}" for place, name in enumerate(names)}
        row += len(names) + 0.5
        share = hidden_share(events, step)
        if share is not None:
            shares.append(share)
    axes.set_yticks(list(labels), list(labels.values()))
    axes.set_ylim(row - 1, -0.6)  # The first rank is on top.
    axes.set_xlim(0, (max(steps[rank][number][1] for rank in ranks) - begin) / 1000)
    axes.set_xlabel("ms")
    title = f"Step {number + 1 if number >= 0 else len(steps[ranks[0]]) + number + 1} of the trace"
    if shares:
        title += (f": ranks do not wait during {100 * sum(shares) / len(shares):.0f} % of the time in which they "
                  "communicate")
    axes.set_title(title, fontsize=11)
    order = [kind for kind in (*PARTS, *COMMUNICATION, "other") if kind in bars]
    figure.legend([bars[kind] for kind in order], order, fontsize=9, ncols=len(order), loc="outside lower center",
                  frameon=False, columnspacing=1, handlelength=1)
    figure.savefig(out, dpi=100)


def draw_schedule(pyplot, out, schedule):
    ranks = schedule["ranks"]
    stages = 1 + max(action["stage"] for rank in ranks for action in rank)
    figure, axes = pyplot.subplots(figsize=(11, 1.3 + 0.45 * len(ranks)), layout="constrained")
    for row, rank in enumerate(ranks):
        for action in rank:
            colour = PARTS[action["kind"]]
            # Later stages of a rank have lighter colours.
            shade = 0.55 + 0.45 * (1 - action["stage"] // len(ranks) / max(1, stages // len(ranks)))
            width = action["end"] - action["begin"]
            axes.barh(row, width, left=action["begin"], height=0.9, color=colour, alpha=shade, edgecolor="white")
            label = f"{action['micro_batch']}" + (f":{action['slice']}" if schedule["name"] == "TeraPipe" else "")
            axes.text(action["begin"] + width / 2, row, label, ha="center", va="center", fontsize=7, clip_on=True)
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in range(len(ranks))])
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.set_xlim(0, schedule["total"])
    axes.set_xlabel("time of a rank's forward of one micro-batch")
    axes.set_title(f"{schedule['name']}: ranks are idle for {100 * schedule['bubble']:.0f} % of a step", fontsize=11)
    bars = [pyplot.Rectangle((0, 0), 1, 1, color=PARTS[kind]) for kind in ("forward", "backward")]
    figure.legend(bars, ["forward of a micro-batch (lighter: in a later stage of the rank)", "backward"], fontsize=9, ncols=2, loc="outside lower center",
                  frameon=False)
    figure.savefig(out, dpi=100)


def draw_choices(pyplot, out, sizes):
    figure, rows = pyplot.subplots(len(sizes), 2, figsize=(11, 0.6 + 2.2 * len(sizes)), layout="constrained",
                                   squeeze=False, sharey=True)
    for (size, choices), (speed, memory) in zip(sizes.items(), rows):
        names = list(choices)
        colours = [OTHER if name.startswith("PyTorch") else CLASS_COLOURS["replicated" in name] for name in names]
        speeds = [found["speed"] for found in choices.values()]
        reach = [[middle - low for middle, low, _ in speeds], [high - middle for middle, _, high in speeds]]
        for axes, values, errors, text, title in (
                (speed, [middle for middle, _, _ in speeds], reach, "{:.2f}", "speed of a step, to PyTorch's DDP"),
                (memory, [found["megabytes"] for found in choices.values()], None, "{:,.0f} MB", "memory of a rank")):
            axes.barh(names, values, xerr=errors, color=colours, height=0.75, ecolor="#444444", capsize=2)
            for place, value in enumerate(values):
                axes.text(0.01 * max(values), place, text.format(value), va="center", fontsize=9, color="white")
            axes.set_title(f"{size}: {title}", fontsize=11)
            axes.grid(alpha=0.3, axis="x")
            axes.set_axisbelow(True)
    rows[0][0].invert_yaxis()  # puts the first choice on top; the axes share y
    figure.savefig(out, dpi=100)


def run_argument(text):
    name, _, path = text.rpartition("=")
    return name or pathlib.Path(path).stem, pathlib.Path(path)


def read_runs(metrics):
    names = [name for name, _ in metrics]
    for name in names:
        if names.count(name) > 1:
            sys.exit(f"plot: two runs are called '{name}': put NAME= before one")
    return {name: read_metrics(path) for name, path in metrics}


def count_from_1(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1, found {text}")
    return number


def parse(words):
    parser = argparse.ArgumentParser(prog="scripts/plot", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("runs", help="loss, throughput and memory of several runs")
    runs.add_argument("out", type=pathlib.Path)
    runs.add_argument("metrics", nargs="+", type=run_argument, metavar="[NAME=]METRICS.jsonl")
    runs.add_argument("--over", choices=("seconds", "step"), default="seconds", help="the horizontal axis (seconds)")
    step = commands.add_parser("step", help="what each rank does in a step")
    step.add_argument("out", type=pathlib.Path)
    step.add_argument("trace", type=pathlib.Path, metavar="TRACE.json")
    step.add_argument("--step", type=count_from_1, help="which whole step of the trace, from 1 (the last one)")
    schedule = commands.add_parser("schedule", help="what each rank of a pipeline does at which time")
    schedule.add_argument("out", type=pathlib.Path)
    schedule.add_argument("schedule", type=pathlib.Path, metavar="SCHEDULE.json")
    choices = commands.add_parser("choices", help="speed and memory of fsdp and PyTorch")
    choices.add_argument("out", type=pathlib.Path)
    choices.add_argument("choices", type=pathlib.Path, metavar="CHOICES.json")
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
            draw_runs(pyplot, arguments.out, read_runs(arguments.metrics), arguments.over)
        elif arguments.command == "schedule":
            draw_schedule(pyplot, arguments.out, json.loads(arguments.schedule.read_text(encoding="utf-8")))
        elif arguments.command == "choices":
            draw_choices(pyplot, arguments.out, json.loads(arguments.choices.read_text(encoding="utf-8")))
        else:
            trace = json.loads(arguments.trace.read_text(encoding="utf-8"))["traceEvents"]
            draw_step(pyplot, arguments.out, trace, -1 if arguments.step is None else arguments.step - 1)
    except (OSError, ValueError, KeyError, IndexError) as error:
        print(f"plot: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
