"""README.md: its quickstart and its parts of tests/consumer/training.cpp are those that the test `consumer` runs, and its
table of documents has a row for each page."""

import pathlib
import re
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"```cpp\n(.*?)```", re.DOTALL)


def without_indent(text):
    return [line.strip() for line in textwrap.dedent(text).splitlines() if line.strip()]


class Readme(unittest.TestCase):
    def test_the_quickstart_stands_in_it_whole(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        for name in ("quickstart.cpp", "CMakeLists.txt"):
            self.assertIn("\n" + (ROOT / "examples/quickstart" / name).read_text(encoding="utf-8") + "```", readme)

    def test_parts_of_a_program_are_parts_of_one_that_runs(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        section = readme.split("## Seeds, data, metrics, saving")[1].split("\n## ")[0]
        program = without_indent((ROOT / "tests/consumer/training.cpp").read_text(encoding="utf-8"))
        blocks = BLOCK.findall(section)
        self.assertGreaterEqual(len(blocks), 3)
        for block in map(without_indent, blocks):
            for part in "\n".join(block).split("\n// ...\n"):
                lines = part.splitlines()
                starts = [i for i, line in enumerate(program) if line == lines[0]]
                self.assertTrue(any(program[i : i + len(lines)] == lines for i in starts), part)

    def test_the_table_of_documents_has_each_page_once(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        table = readme.split("## Documents")[1]
        rows = re.findall(r"^\| \[([^\]]+)\]\(([^)]+)\) \|", table, re.MULTILINE)
        for name, target in rows:
            self.assertEqual(name, target)
        pages = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".dox")]
        self.assertEqual(sorted(name for name, _ in rows if name.startswith("docs/")), sorted(pages))


if __name__ == "__main__":
    unittest.main()
