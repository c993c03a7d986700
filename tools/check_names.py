"""Fails when docs/names.md says that something is in include/fsdp and it is not, or the other way round.

    python3 tools/check_names.py [ROOT]

In a cell of a table, what stands behind `not there yet` is not declared yet, or its declaration says "not there yet" in
its comment; what stands before it is declared. The second cell of a row names something that is there, or begins with
`nothing` or `not there yet`. Each argument of FSDP1 has a row.
"""

import pathlib
import re

from check_coverage import API, COMMENT, QUOTED, Tree, run

LATER = "not there yet"
FSDP1 = """process_group device_mesh sharding_strategy FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD
_HYBRID_SHARD_ZERO2 cpu_offload auto_wrap_policy backward_prefetch mixed_precision param_dtype reduce_dtype buffer_dtype
keep_low_precision_grads cast_forward_inputs cast_root_forward_inputs ignored_modules ignored_states param_init_fn
device_id sync_module_states forward_prefetch limit_all_gathers use_orig_params enable_wrap wrap
default_auto_wrap_policy""".split()

OPERATOR = re.compile(r"(?<=::operator)\W+$")


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else [line]


def says_later(root, name):
    """Whether a declaration of the name, or of the type around it, has the mark in its comment, beside or above it."""
    *types, last = name.split("::")
    word = re.compile("|".join([rf"\b{last}\b"] + [rf"\b(struct|class) {type_name}\b" for type_name in types]))
    for path in sorted(root.glob("include/fsdp/*.h")):
        above = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            code = COMMENT.sub("", line)
            if word.search(code) and LATER in above + line[len(code):]:
                return True
            above = above + line if not code.strip() and line.strip() else ""
    return False


def problems_of_cell(tree, cell):
    now, mark, later = cell.partition(LATER)
    for quoted in QUOTED.findall(now):
        yield from tree.judge(OPERATOR.sub("", quoted)) or []
    for quoted in QUOTED.findall(later if mark else ""):
        name = API.fullmatch(quoted)
        if name and tree.judge(quoted) == [] and not says_later(tree.root, name[2]):
            yield f"{quoted} is declared: is it still {LATER}?"


def is_answer(tree, cell):
    return cell.startswith(("nothing", LATER)) or any(
        tree.judge(OPERATOR.sub("", quoted)) is not None for quoted in QUOTED.findall(cell.partition(LATER)[0]))


def check(root):
    """Problems of docs/names.md as lines to print, and the number of its rows."""
    root = pathlib.Path(root)
    tree = Tree(root)
    problems, first_cells = [], []
    for number, line in enumerate((root / "docs" / "names.md").read_text(encoding="utf-8").splitlines(), 1):
        cells = cells_of(line)
        if len(cells) > 1 and (set(cells[0]) <= set("-: ") or cells[1] == "here"):
            continue
        if len(cells) > 1:
            first_cells += QUOTED.findall(cells.pop(0))
            if not is_answer(tree, cells[0]):
                problems.append(f"docs/names.md:{number}: names nothing that is there, nor `nothing` or `{LATER}`")
        problems += [f"docs/names.md:{number}: {problem}" for cell in cells for problem in problems_of_cell(tree, cell)]
    problems += [f"docs/names.md: FSDP1's {name} has no row" for name in FSDP1 if name not in first_cells]
    return problems, len(first_cells)


if __name__ == "__main__":
    run(check, "", "names: {} names from elsewhere, each with what it is here")
