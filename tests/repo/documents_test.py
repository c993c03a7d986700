"""Tests that code in documents is the code of programs that tests run, and that docs/README.md names each page once."""

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

    def test_has_few_links(self):
        self.assertLessEqual(len(re.findall(r"(?<!!)\[[^\]]*\]\(", read("README.md"))), 10)


class Tutorial(unittest.TestCase):
    def test_parts_of_a_program_are_parts_of_one_that_runs(self):
        section = read("docs/tutorial.md").split("## Seeds, data, metrics")[1].split("\n## ")[0]
        program = without_indent(read("tests/consumer/training.cpp"))
        blocks = BLOCK.findall(section)
        self.assertGreaterEqual(len(blocks), 2)
        for block in map(without_indent, blocks):
            for part in "\n".join(block).split("\n// ...\n"):
                lines = part.splitlines()
                starts = [i for i, line in enumerate(program) if line == lines[0]]
                self.assertTrue(any(program[i : i + len(lines)] == lines for i in starts), part)


class Pages(unittest.TestCase):
    def test_the_table_of_pages_has_each_page_once(self):
        rows = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\) \|", read("docs/README.md"), re.MULTILINE)
        docs = ROOT / "docs"
        pages = [str(path.relative_to(docs)) for path in docs.rglob("*") if path.suffix in (".md", ".dox")]
        self.assertEqual(sorted(row for row in rows if not row.startswith("../")),
                         sorted(page for page in pages if page != "README.md"))


class OwnOptimizer(unittest.TestCase):
    def test_the_page_shows_what_a_test_runs(self):
        program = "\n".join(without_indent(read("examples/own_optimizer.h")))
        blocks = BLOCK.findall(read("docs/precision.md").split("## Your own optimizer")[1])
        self.assertEqual(len(blocks), 2)
        for block in blocks:
            self.assertIn("\n".join(without_indent(block)), program)


class Concepts(unittest.TestCase):
    def pieces(self, heading):
        """Returns the code in the right column of the tables under a heading."""
        section = read("docs/concepts.md").split(f"\n## {heading}\n")[1].split("\n## ")[0]
        return [piece for _, right in ROW.findall(section) for piece in re.findall(r"`([^`]+)`", right)]

    def test_the_code_beside_python_is_in_a_program_that_runs(self):
        program = " ".join(read("tests/consumer/from_python.cpp").split())
        shown = self.pieces("Code beside code")
        self.assertGreater(len(shown), 60)
        for piece in shown:
            self.assertIn(" ".join(piece.split()), program)

    def test_the_names_beside_pytorchs_are_declared(self):
        headers = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "include/fsdp").glob("*.h"))
        shown = [piece for piece in self.pieces("Names") if "::" in piece]
        self.assertGreater(len(shown), 60)
        for piece in shown:
            owner, _, name = piece.removeprefix("fsdp::").rpartition("::")
            if owner and owner != "optim":
                self.assertRegex(headers, rf"(class|struct)( \[\[nodiscard\]\])? {owner}\b", piece)
            self.assertRegex(headers, rf"\b{name}\b", piece)


class Choosing(unittest.TestCase):
    def test_what_the_page_shows_are_lines_of_the_programs_that_it_names(self):
        blocks = re.findall(r"^```cpp (\S+)\n(.*?)^```$", read("docs/choosing.md"), re.MULTILINE | re.DOTALL)
        self.assertEqual(len(blocks), 2)
        for name, block in blocks:
            self.assertIn("\n" + block, read(name))


class Refused(unittest.TestCase):
    def test_what_the_page_shows_is_in_the_test_that_runs_it(self):
        program = without_indent(read("tests/misuse/instead_test.cpp"))
        blocks = [without_indent(block) for block in BLOCK.findall(read("docs/refused.md"))]
        self.assertGreaterEqual(len(blocks), 5)
        for lines in blocks:
            starts = [i for i, line in enumerate(program) if line == lines[0]]
            self.assertTrue(any(program[i : i + len(lines)] == lines for i in starts), lines)


class UsersPages(unittest.TestCase):
    PAGES = ("docs/axes.md", "docs/checkpoints.md", "docs/launching.md", "docs/memory.md", "docs/observing.md",
             "docs/pipeline.md", "docs/precision.md", "docs/sequence.md", "docs/trainer.md", "apps/gpt/README.md")

    def test_what_they_name_of_the_library_is_in_its_headers(self):
        headers = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "include").rglob("*.h"))
        declared = set(re.findall(r"\w+", headers))
        for page in self.PAGES:
            names = re.findall(r"\bfsdp::[\w:]*\w|`(?:[A-Z]\w+::\w+)", read(page))
            self.assertGreater(len(names), 1, page)
            for name in names:
                self.assertLessEqual(set(re.findall(r"\w+", name)), declared, page)

    def test_the_flags_of_fsdprun_are_in_the_table(self):
        section = read("docs/launching.md").split("## fsdprun's flags")[1].split("\n##")[0]
        rows = "".join(line for line in section.splitlines(True) if line.startswith("| `"))
        declared = set(re.findall(r'"(?:-\w,)?(--[a-z-]+)"', read("apps/fsdprun/flags.cpp")))
        self.assertEqual(set(re.findall(r"--[a-z-]+", rows)), declared - {"--module"})  # this flag is refused

    def test_lines_are_not_long(self):
        for page in self.PAGES:
            for line in read(page).splitlines():
                if not line.startswith("|"):
                    self.assertLessEqual(len(line), 120, f"{page}: {line}")


class Gpt(unittest.TestCase):
    PAGE = "apps/gpt/README.md"

    def test_the_flags_of_fsdp_gpt_are_in_its_tables(self):
        section = read(self.PAGE).split("## Flags")[1].split("\n##")[0]
        rows = "".join(line for line in section.splitlines(True) if line.startswith("| `"))
        shown = set(re.findall(r"(?<!`)--[a-z0-9_-]+", " ".join(re.findall(r"`(--[^`]+)`", rows))))
        files = ["apps/gpt/arguments.cpp", *(str(path.relative_to(ROOT)) for path in ROOT.glob("apps/frame/*_flags.cpp"))]
        calls = r'(?:\badd(?:_\w+)?(?:<[^>]*>)?|set_config)\(\s*(?:app, )?"(--[a-z0-9_,-]+)"'
        declared = {flag for file in files for flags in re.findall(calls, read(file)) for flag in flags.split(",")}
        self.assertEqual(shown, declared)

    def test_the_commands_of_fsdp_bench_are_in_their_table(self):
        section = read(self.PAGE).split("## fsdp-bench")[1]
        shown = {word.split()[0] for row in re.findall(r"^\| (`.*?) \|", section.split("`step` prints")[0], re.MULTILINE)
                 for word in re.findall(r"`([^`]+)`", row)}
        self.assertEqual(shown, set(re.findall(r'add_subcommand\(\s*"([a-z]+)"', read("apps/fsdp-bench/main.cpp"))))


class Project(unittest.TestCase):
    """Tests that the tables of docs/project name tests and files that exist."""

    def test_the_tests_and_files_that_the_tables_name_are_there(self):
        tests = set()
        for path in (ROOT / "tests").rglob("*.cpp"):
            found = re.findall(r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", path.read_text(encoding="utf-8"), re.MULTILINE)
            tests.update(map(".".join, found))
        for path in ROOT.glob("[a-z]*/**/*_test.py"):
            for part in re.split(r"^class ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
                methods = re.findall(r"^    def (test_\w+)", part, re.MULTILINE)
                tests.update(f"{re.match(r'[A-Za-z0-9_]+', part)[0]}.{method}" for method in methods)
        for page in sorted((ROOT / "docs/project").glob("*.md")):
            tables = "\n".join(line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|"))
            named = set(re.findall(r"`([A-Z]\w+\.(?:[A-Z]|test_)\w+)`", tables))
            self.assertGreater(len(named), 30, page.name)
            self.assertEqual(named - tests, set(), page.name)
            paths = set(re.findall(r"`([a-z]+/[\w./-]+)`", tables))
            self.assertEqual({path for path in paths if not (ROOT / path).exists()}, set(), page.name)


if __name__ == "__main__":
    unittest.main()
