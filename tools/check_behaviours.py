"""Fails when docs/behaviours.md or docs/complaints.md names a test that does not exist, or has a row without a test or a
reason.

    python3 tools/check_behaviours.py [ROOT]

A row is `| FSDP2's tests | what | here |`, or `| threads | complaint | here |`; each of FSDP2's tests and each thread, in
backquotes, stands in one row. The reasons are those of the page's first table; one that ends with a colon goes on with
what it says.
"""

import pathlib
import re

from check_coverage import QUOTED, TEST, Tree, run

CELLS = re.compile(r"^\|(.*)\|\s*$")
HEADINGS = {"FSDP2", "thread", "reason"}
PAGES = ("behaviours", "complaints")


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


def check_page(tree, text):
    """Problems of a page as lines to print, how many behaviours it has, and how many of them with a test here."""
    rows = list(rows_of(text))
    reasons = [cells[0] for cells in rows if len(cells) == 2]
    problems, listed, proven = [], [], 0
    for theirs, _, here in (cells for cells in rows if len(cells) == 3):
        names = QUOTED.findall(theirs)
        problems += [f"{theirs}: {problem}" for problem in problems_of_row(tree, here, reasons)]
        problems += [f"{name}: stands in two rows" for name in names if name in listed]
        listed += names
        proven += len(names) if not here.startswith(tuple(reasons)) else 0
    return problems, len(listed), proven


def check(root):
    """The same of all pages."""
    root = pathlib.Path(root)
    tree = Tree(root)
    pages = [check_page(tree, (root / "docs" / f"{page}.md").read_text(encoding="utf-8")) for page in PAGES]
    return [problem for page in pages for problem in page[0]], *(sum(page[i] for page in pages) for i in (1, 2))


if __name__ == "__main__":
    run(check, "docs: ", "behaviours: {} of FSDP2's tests and of its users' threads, {} of them with a test here")
