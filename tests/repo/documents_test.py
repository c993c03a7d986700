"""Code that documents show is that of programs which tests run; README.md names each page once."""

import pathlib
import re
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"```cpp\n(.*?)```", re.DOTALL)
ROW = re.compile(r"^\| (.*) \| (.*) \|$", re.MULTILINE)


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def without_indent(text):
    return [line.strip() for line in textwrap.dedent(text).splitlines() if line.strip()]


class Readme(unittest.TestCase):
    def test_the_quickstart_stands_in_it_whole(self):
        for name in ("quickstart.cpp", "CMakeLists.txt"):
            self.assertIn("\n" + read(f"examples/quickstart/{name}") + "```", read("README.md"))

    def test_parts_of_a_program_are_parts_of_one_that_runs(self):
        section = read("README.md").split("## Seeds, data, metrics, saving")[1].split("\n## ")[0]
        program = without_indent(read("tests/consumer/training.cpp"))
        blocks = BLOCK.findall(section)
        self.assertGreaterEqual(len(blocks), 3)
        for block in map(without_indent, blocks):
            for part in "\n".join(block).split("\n// ...\n"):
                lines = part.splitlines()
                starts = [i for i, line in enumerate(program) if line == lines[0]]
                self.assertTrue(any(program[i : i + len(lines)] == lines for i in starts), part)

    def test_the_table_of_documents_has_each_page_once(self):
        rows = re.findall(r"^\| \[([^\]]+)\]\(([^)]+)\) \|", read("README.md").split("## Documents")[1], re.MULTILINE)
        for name, target in rows:
            self.assertEqual(name, target)
        pages = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".dox")]
        self.assertEqual(sorted(name for name, _ in rows if name.startswith("docs/")), sorted(pages))


class OwnOptimizer(unittest.TestCase):
    def test_the_page_shows_what_a_test_runs(self):
        program = "\n".join(without_indent(read("examples/own_optimizer.h")))
        blocks = BLOCK.findall(read("docs/precision.md").split("## Your own optimizer")[1])
        self.assertEqual(len(blocks), 3)
        for block in blocks:
            self.assertIn("\n".join(without_indent(block)), program)


class FromPython(unittest.TestCase):
    def test_what_the_page_shows_is_in_a_program_that_runs(self):
        program = " ".join(read("tests/consumer/from_python.cpp").split())
        rows = ROW.findall(read("docs/from_python.md"))
        shown = [piece for _, right in rows for piece in re.findall(r"`([^`]+)`", right)]
        self.assertGreater(len(shown), 80)
        for piece in shown:
            self.assertIn(" ".join(piece.split()), program)


class Refused(unittest.TestCase):
    def test_what_the_page_shows_is_in_the_test_that_runs_it(self):
        program = without_indent(read("tests/misuse/instead_test.cpp"))
        blocks = [without_indent(block) for block in BLOCK.findall(read("docs/refused.md"))]
        self.assertGreaterEqual(len(blocks), 5)
        for lines in blocks:
            starts = [i for i, line in enumerate(program) if line == lines[0]]
            self.assertTrue(any(program[i : i + len(lines)] == lines for i in starts), lines)


class UsersPages(unittest.TestCase):
    PAGES = ("checkpoints", "launching", "memory", "observing", "precision")

    def test_what_they_name_of_the_library_is_in_its_headers(self):
        headers = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "include").rglob("*.h"))
        declared = set(re.findall(r"\w+", headers))
        for page in self.PAGES:
            names = re.findall(r"\bfsdp::[\w:]*\w|`(?:[A-Z]\w+::\w+)", read(f"docs/{page}.md"))
            self.assertGreater(len(names), 3, page)
            for name in names:
                self.assertLessEqual(set(re.findall(r"\w+", name)), declared, page)

    def test_the_flags_of_fsdprun_are_in_the_table(self):
        section = read("docs/launching.md").split("## fsdprun's flags")[1].split("\n##")[0]
        rows = "".join(line for line in section.splitlines(True) if line.startswith("| `"))
        declared = set(re.findall(r'"(?:-\w,)?(--[a-z-]+)"', read("apps/fsdprun/flags.cpp")))
        self.assertEqual(set(re.findall(r"--[a-z-]+", rows)), declared - {"--module"})  # which is refused

    def test_lines_are_not_long(self):
        for page in self.PAGES:
            for line in read(f"docs/{page}.md").splitlines():
                self.assertLessEqual(len(line), 120, f"{page}: {line}")


if __name__ == "__main__":
    unittest.main()
