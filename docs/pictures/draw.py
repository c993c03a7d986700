"""Draws the pictures of the documents as SVG, the same bytes each time.

    .venv/bin/python docs/pictures/draw.py [FOLDER]      into FOLDER, else beside this file

Whoever changes a drawing commits what this gives.
"""

import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import patches, pyplot  # noqa: E402

# From dark to light, so that they differ in black and white too.
ROWS, WHOLE, GRADIENT, STATE, PLAIN = "#3d6299", "#82add9", "#f2cc85", "#fbf3dd", "#ffffff"
INK, GREY = "#1a1a1a", "#666666"

matplotlib.rcdefaults()  # whatever a matplotlibrc says
pyplot.rcParams.update({"svg.hashsalt": "fsdp", "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 9,
                        "hatch.linewidth": 0.5, "text.color": INK})


def canvas(width, height):
    """An empty picture of width x height units, 800 px wide on a page."""
    figure = pyplot.figure(figsize=(800 / 96, 800 / 96 * height / width), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def box(axes, left, top, width, height, color, text="", ink=None, **more):
    style = {"edgecolor": INK, "linewidth": 0.8} | more
    axes.add_patch(patches.Rectangle((left, top), width, height, facecolor=color, **style))
    ink = ink or ("white" if color == ROWS else INK)
    axes.text(left + width / 2, top + height / 2, text, ha="center", va="center", color=ink)


def label(axes, x, y, text, **more):
    axes.text(x, y, text, **({"ha": "left", "va": "center"} | more))


def arrow(axes, start, end, style="-|>", **more):
    axes.add_patch(patches.FancyArrowPatch(start, end, arrowstyle=style, mutation_scale=10, shrinkA=0, shrinkB=0,
                                           **({"color": INK, "linewidth": 1} | more)))


def step():
    figure, axes = canvas(100, 50)
    left, scale = 17, 3.35
    forwards = [(2.4, 3.2, "forward 1", WHOLE), (5.6, 3.2, "forward 2", WHOLE)]
    backwards = [(8.8, 4.4, "backward 2", GRADIENT), (13.2, 4.4, "backward 1", GRADIENT)]
    computes = forwards + backwards + [(20.2, 4.4, "optimizer", STATE)]
    gathers = [(0, 2.4, "gather 1", PLAIN), (2.4, 2.4, "gather 2", PLAIN), (8.8, 2.4, "gather 1", PLAIN)]
    reductions = [(13.2, 2.6, "reduce 2", PLAIN), (17.6, 2.6, "reduce 1", PLAIN)]
    lanes = [("rank 0", "computes", computes), ("both", "all-gather", gathers), ("", "reduce-scatter", reductions),
             ("rank 1", "computes", computes), None,
             ("rank 0", "rows", [(0, 24.6, "its rows of 1 and 2, and their optimizer state", ROWS)]),
             ("holds", "whole", [(0, 5.6, "whole 1", WHOLE), (8.8, 8.8, "whole 1", WHOLE)]),
             ("", "", [(2.4, 10.8, "whole 2, which backward needs first", WHOLE)]),
             ("", "gradients", [(8.8, 7, "whole, of 2", GRADIENT), (15.8, 8.8, "rows of 2", GRADIENT)]),
             ("", "", [(13.2, 7, "whole, of 1", GRADIENT), (20.2, 4.4, "rows of 1", GRADIENT)])]
    top = 1.5
    for lane in lanes:
        if lane is None:
            top += 3
            continue
        who, what, events = lane
        label(axes, 1, top + 1.9, who, weight="bold")
        label(axes, left - 1, top + 1.9, what, ha="right", color=GREY)
        for begin, length, text, color in events:
            box(axes, left + begin * scale, top, length * scale, 3.8, color, text)
        if "whole 1" in (event[2] for event in events):
            label(axes, left + 7.2 * scale, top + 1.9, "freed", ha="center", color=GREY)
        top += 4.6
    arrow(axes, (left, top + 0.6), (left + 24.6 * scale, top + 0.6), color=GREY)
    label(axes, left - 1, top + 0.6, "time", ha="right", color=GREY)
    return figure


def all_reduce():
    figure, axes = canvas(100, 40)
    side, ranks = 5.6, 4
    names = "abcd"
    for at, title in ((9, "each rank's gradients"), (40, "sums, each on one rank"), (71, "sums, on every rank")):
        label(axes, at + 2 * side, 3, title, ha="center", weight="bold")
    for rank in range(ranks):
        top = 6 + rank * side
        label(axes, 7.8, top + side / 2, f"rank {rank}", ha="right")
        for part in range(ranks):
            box(axes, 9 + part * side, top, side, side, GRADIENT, f"{names[rank]}{part}")
            own = part == rank
            box(axes, 40 + part * side, top, side, side, ROWS if own else PLAIN, f"Σ{part}" if own else "",
                edgecolor=INK if own else "#bbbbbb", zorder=2 if own else 1)
            box(axes, 71 + part * side, top, side, side, ROWS if own else WHOLE, f"Σ{part}")
    middle = 6 + 2 * side
    for x, text in ((32.2, "reduce-\nscatter"), (63.2, "all-\ngather")):
        arrow(axes, (x, middle), (x + 7, middle), linewidth=1.5)
        label(axes, x + 3.4, middle - 3, text, ha="center")
    label(axes, 9 + 2 * side, 31.5, "Σ0 = a0 + b0 + c0 + d0", ha="center", color=GREY)
    label(axes, 40 + 2 * side, 31.5, "rows: where the optimizer steps", ha="center", color=GREY)
    label(axes, 71 + 2 * side, 31.5, "whole: what forward reads", ha="center", color=GREY)
    label(axes, 50, 36.8, "Of P bytes on N ranks each of the two steps sends P (N - 1) / N from every rank.",
          ha="center")
    return figure


def held():
    # docs/choosing.md works the same model through: a GPT of 24 blocks of width 2048, 32,000 words, contexts of 1,024.
    layers, dim, words, context, ranks = 24, 2048, 32000, 1024, 8
    gib = 4 / 2**30
    block = (12 * dim**2 + 13 * dim) * gib
    root = (2 * words + context + 2) * dim * gib
    head = (words + 2) * dim * gib
    model = layers * block + root
    share = model / ranks
    sums = max(head + 3 * block + (layers - 1) * block / ranks, root + 2 * block + layers * block / ranks)
    bars = [("DDP", "backward", model, 0, 2 * model, 2 * model), ("", "optimizer step", model, 0, model, 2 * model),
            ("ZeRO-1", "backward", share, model, sums, 2 * share),
            ("", "optimizer step", share, model, share, 2 * share),
            ("ZeRO-2", "backward", share, model, sums, 2 * share), ("", "optimizer step", share, 0, share, 2 * share),
            ("FSDP", "backward", share, root + 2 * block, sums, 2 * share),
            ("", "optimizer step", share, 0, share, 2 * share)]
    parts = (("rows of parameters", ROWS, None), ("whole parameters", WHOLE, None), ("gradients", GRADIENT, None),
             ("optimizer state", STATE, "///"))
    figure, axes = canvas(100, 52)
    left, scale = 26, 2.6
    for at, (name, color, hatch) in zip((26, 47, 66.5, 80), parts):
        box(axes, at, 2, 2.6, 2.6, color, hatch=hatch)
        label(axes, at + 3.4, 3.4, name)
    for line, (strategy, moment, *sizes) in enumerate(bars):
        top = 7.5 + line * 4.4 + line // 2 * 1.4
        label(axes, 1, top + 1.8, strategy, weight="bold")
        label(axes, left - 1, top + 1.8, moment, ha="right", color=GREY)
        at = left
        for size, (_, color, hatch) in zip(sizes, parts):
            if size:
                box(axes, at, top, size * scale, 3.6, color, hatch=hatch)
            at += size * scale
        label(axes, at + 0.8, top + 1.8, f"{sum(sizes):.1f} GiB")
    label(axes, 1, 50, "A GPT of 1.34 billion parameters in fp32 on 8 ranks over a network, with AdamW, at most; "
          "without activations.", color=GREY)
    return figure


def shared_memory():
    figure, axes = canvas(100, 47)
    left, width = 20, 60
    half = width / 2
    for rank, top in ((0, 4), (1, 33)):
        box(axes, 2, top, 96, 10, "#f4f4f4", linewidth=0.6)
        label(axes, 3.5, top + 5, f"rank {rank}", weight="bold")
        box(axes, left + rank * half, top + 1, half, 3.6, ROWS, "outside scopes: its rows")
        box(axes, left, top + 5.4, width, 3.6, WHOLE, "inside a scope: the whole parameter")
        label(axes, 82, top + 5, "gradients: its own", fontsize=8)
    for rank in (0, 1):
        box(axes, left + rank * half, 20, half, 7, PLAIN, f"rows of rank {rank}")
        for page in range(1, 6):
            x = left + rank * half + page * half / 6
            axes.plot([x, x], [20, 21.2], color=INK, linewidth=0.6)
            axes.plot([x, x], [25.8, 27], color=INK, linewidth=0.6)
    label(axes, 3.5, 22.2, "memory", weight="bold")
    label(axes, 3.5, 25, "of the host", weight="bold")
    for x in (left, left + half, left + width):
        axes.plot([x, x], [14.2, 19.8], color=GREY, linestyle=":", linewidth=1)
        axes.plot([x, x], [27.2, 32.8], color=GREY, linestyle=":", linewidth=1)
    clear = {"ha": "center", "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
    label(axes, left + half, 17, "the same pages, mapped by both ranks: a gather moves nothing", **clear)
    label(axes, left + half, 30, "a rank's optimizer writes its rows; the other reads them in the next scope", **clear)
    return figure


PICTURES = {"step": step, "all_reduce": all_reduce, "held": held, "shared_memory": shared_memory}


def main(folder):
    for name, draw in PICTURES.items():
        figure = draw()
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent))
