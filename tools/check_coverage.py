"""Fails when docs/coverage.md does not account for every numbered item, or names what does not exist.

    python3 tools/check_coverage.py [ROOT]

A row is `| A1 | what | where |`. The last column begins with `open`, or with `cannot apply:` and why, or says where the
item is and may end with `open:` and what is missing. A row that says where names at least one of these in backquotes:

    `src/layout/row_layout.h`           a file, never a folder
    `Cost.EvaluationLeavesNothingWhole` a test as --gtest_filter and unittest name it: Suite.Name
    `fsdp::spawn`, `Group::no_sync`     a declaration in a public header: fsdp's, or a member of one of its types
    `fsdprun --nnodes 2`                a program and its flags
"""

import pathlib
import re
import sys

# The items of the four source documents: letter and how many.
ITEMS = {"A": 57, "B": 43, "C": 44, "D": 20}

ROW = re.compile(r"^\|\s*([A-Z]\d+)\s*\|(.*)\|\s*$")
QUOTED = re.compile(r"`([^`]+)`")
PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:md|h|cpp|py)")
TEST = re.compile(r"[A-Z]\w*\.\w+")
API = re.compile(r"(fsdp::)?([A-Za-z_]\w*(?:::\w+)*)(?:<[^>]*>)?(?:\([^)]*\))?(?: = .*)?")
FLAG = re.compile(r"--?[A-Za-z][\w-]*")
GTEST = re.compile(r"\bTEST(?:_[FP])?\(\s*(\w+)\s*,\s*(\w+)\s*\)")
UNITTEST = re.compile(r"^class (\w+)|^ +def (test_\w+)", re.MULTILINE)
COMMENT = re.compile(r"//.*")


def numbers():
    return [f"{letter}{i}" for letter, count in ITEMS.items() for i in range(1, count + 1)]


def rows_of(text):
    """Pairs of number and last column."""
    for line in text.splitlines():
        match = ROW.match(line)
        if match:
            yield match[1], match[2].split("|")[-1].strip()


def texts(root, *patterns):
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            yield path.read_text(encoding="utf-8")


def tests_of(root):
    """The names of all tests, as Suite.Name."""
    names = set()
    for text in texts(root, "tests/**/*.cpp", "apps/**/*.cpp"):
        names.update(f"{suite}.{name}" for suite, name in GTEST.findall(text))
    for text in texts(root, "tests/**/*_test.py", "apps/**/*_test.py"):
        suite = ""
        for new_suite, name in UNITTEST.findall(text):
            suite = new_suite or suite
            if name:
                names.add(f"{suite}.{name}")
    return names


class Tree:
    """What a row may name."""

    def __init__(self, root):
        self.root = root
        self.tests = tests_of(root)
        self.headers = [COMMENT.sub("", text) for text in texts(root, "include/fsdp/*.h")]
        self.programs = {path.parent.name for path in root.glob("apps/*/main.cpp")}

    def declares(self, name):
        """Whether one public header has every part of Type::member as a word of its code."""
        return any(all(re.search(rf"\b{part}\b", text) for part in name.split("::")) for text in self.headers)

    def takes(self, program, flag):
        """Whether the sources of the program, or of what it shares with others, have the flag, in either spelling."""
        spellings = {flag, flag.replace("_", "-")}
        own = "\n".join(texts(self.root, f"apps/{program}/*.cpp"))
        # "frame/sharding_flags.h" has flags of the programs that call it.
        shared = [text for name, text in ((path.stem, path.read_text(encoding="utf-8"))
                                          for path in self.root.glob("apps/frame/*_flags.cpp")) if f"add_{name}" in own]
        sources = "\n".join([own, *shared])
        return any(re.search(rf'[",]{re.escape(spelling)}[",]', sources) for spelling in spellings)

    def program_problems(self, words):
        """A flag belongs to the last program before it: `fsdprun --nnodes 2 gpt --steps 9`."""
        program = words[0]
        for word in words[1:]:
            if word in self.programs:
                program = word
            elif FLAG.fullmatch(word) and not self.takes(program, word):
                yield f"{program} has no flag {word}"

    def judge(self, quoted):
        """None if the words name nothing that can be checked, else what is wrong with them."""
        words = quoted.split()
        if PATH.fullmatch(quoted):
            return [] if (self.root / quoted).is_file() else [f"{quoted} is no file"]
        if words[0] in self.programs:
            return list(self.program_problems(words))
        if TEST.fullmatch(quoted):
            return [] if quoted in self.tests else [f"there is no test {quoted}"]
        if match := API.fullmatch(quoted):
            is_ours = match[1] or "::" in match[2] and not match[2].startswith(("torch::", "at::", "c10::", "std::"))
            if is_ours:
                return [] if self.declares(match[2]) else [f"no public header declares {quoted}"]
        return None


def check_place(tree, where):
    """Problems of a last column."""
    judged = [verdict for quoted in QUOTED.findall(where) if (verdict := tree.judge(quoted)) is not None]
    if not judged and not where.startswith(("open", "cannot apply: ")):
        yield "names no file, test, declaration or program"
    for verdict in judged:
        yield from verdict


def check(root):
    """Problems of docs/coverage.md as lines to print, the number of open items, and of those that are partly open."""
    root = pathlib.Path(root)
    page = root / "docs" / "coverage.md"
    if not page.exists():
        return ["docs/coverage.md is missing"], 0, 0
    rows = list(rows_of(page.read_text(encoding="utf-8")))
    listed = [number for number, _ in rows]
    problems = [f"{number}: no row" for number in numbers() if number not in listed]
    problems += [f"{number}: {listed.count(number)} rows" for number in sorted(set(listed)) if listed.count(number) > 1]
    problems += [f"{number}: there is no such item" for number in listed if number not in numbers()]
    tree = Tree(root)
    open_items = partly_open = 0
    for number, where in rows:
        if not where:
            problems.append(f"{number}: neither a place nor `open`")
            continue
        is_open = where.startswith("open")
        open_items += is_open
        partly_open += not is_open and "open: " in where
        problems += [f"{number}: {problem}" for problem in check_place(tree, where)]
    return problems, open_items, partly_open


def run(check, prefix, summary):
    """Prints the problems that check(root) finds, or the summary of what it counts besides, and exits."""
    problems, *counts = check(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    print("\n".join(prefix + problem for problem in problems) or summary.format(*counts))
    sys.exit(bool(problems))


if __name__ == "__main__":
    run(check, "docs/coverage.md: ", f"coverage: {len(numbers())} items, {{}} of them open, {{}} partly open")
