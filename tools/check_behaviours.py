"""Fails when docs/behaviours.md names a test that does not exist, or has a row without a test or a reason.

    python3 tools/check_behaviours.py [ROOT]

A row is `| FSDP2's tests | what | here |`; each of FSDP2's tests stands in one row. The reasons are those of the page's
first table; one that ends with a colon goes on with what it says.
"""

import pathlib
import re

from check_coverage import QUOTED, TEST, Tree, run

CELLS = re.compile(r"^\|(.*)\|\s*$")
HEADINGS = {"FSDP2", "reason"}


def rows_of(text):
    """The cells of each row but headings and the lines below them."""
    for line in text.splitlines():
        if match := CELLS.match(line):
            cells = [cell.strip() for cell in match[1].split("|")]
            if cells[0] not in HEADINGS and not set(cells[0]) <= set("-: "):
                yield cells


def has_reason(here, reasons):
    return any(re.search(re.escape(reason) + (r" \S" if reason.endswith(":") else ""), here) for reason in reasons)


def problems_of_row(tree, here, reasons):
    quoted = QUOTED.findall(here)
    for name in quoted:
        if not TEST.fullmatch(name):
            yield f"{name} is no test"
        elif name not in tree.tests:
            yield f"there is no test {name}"
    if not quoted and not has_reason(here, reasons):
        yield "neither a test nor one of the reasons"


def check(root):
    """Problems of docs/behaviours.md as lines to print, the number of FSDP2's tests, and of those with a test here."""
    root = pathlib.Path(root)
    rows = list(rows_of((root / "docs" / "behaviours.md").read_text(encoding="utf-8")))
    reasons = [cells[0] for cells in rows if len(cells) == 2]
    tree = Tree(root)
    problems, listed, proven = [], [], 0
    for theirs, _, here in (cells for cells in rows if len(cells) == 3):
        names = QUOTED.findall(theirs)
        problems += [f"{theirs}: {problem}" for problem in problems_of_row(tree, here, reasons)]
        problems += [f"{name}: stands in two rows" for name in names if name in listed]
        listed += names
        proven += len(names) if not here.startswith(tuple(reasons)) else 0
    return problems, len(listed), proven


if __name__ == "__main__":
    run(check, "docs/behaviours.md: ", "behaviours: {} of FSDP2's, {} of them with a test here")
