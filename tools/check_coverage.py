"""Fails when docs/coverage.md does not account for every numbered item.

    python3 tools/check_coverage.py [ROOT]

A row is `| A1 | what | where |`. The last column says where the item is, why it cannot apply, or begins with `open`.
A path in backquotes in a row that is not open has to exist.
"""

import pathlib
import re
import sys

# The items of the four source documents: letter and how many.
ITEMS = {"A": 57, "B": 43, "C": 44, "D": 20}

ROW = re.compile(r"^\|\s*([A-Z]\d+)\s*\|(.*)\|\s*$")
PATH = re.compile(r"`((?:apps|bench|cmake|data|docs|examples|include|scripts|src|tests|tools)/[\w./-]+)`")


def numbers():
    return [f"{letter}{i}" for letter, count in ITEMS.items() for i in range(1, count + 1)]


def rows_of(text):
    """Pairs of number and last column."""
    for line in text.splitlines():
        match = ROW.match(line)
        if match:
            yield match[1], match[2].split("|")[-1].strip()


def check(root):
    """Problems of docs/coverage.md, as lines to print, and the number of open items."""
    root = pathlib.Path(root)
    page = root / "docs" / "coverage.md"
    if not page.exists():
        return ["docs/coverage.md is missing"], 0
    rows = list(rows_of(page.read_text(encoding="utf-8")))
    listed = [number for number, _ in rows]
    problems = [f"{number}: no row" for number in numbers() if number not in listed]
    problems += [f"{number}: {listed.count(number)} rows" for number in sorted(set(listed)) if listed.count(number) > 1]
    problems += [f"{number}: there is no such item" for number in listed if number not in numbers()]
    open_items = 0
    for number, where in rows:
        if not where:
            problems.append(f"{number}: neither a place nor `open`")
        elif where.startswith("open"):
            open_items += 1
        else:
            problems += [f"{number}: {path} does not exist" for path in PATH.findall(where) if not (root / path).exists()]
    return problems, open_items


def main():
    problems, open_items = check(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    total = len(numbers())
    print("\n".join(f"docs/coverage.md: {p}" for p in problems) or f"coverage: {total} items, {open_items} of them open")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
