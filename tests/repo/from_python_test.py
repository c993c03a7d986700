"""Each piece of C++ in docs/from_python.md is in tests/consumer/from_python.cpp, which the test `consumer` runs."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROW = re.compile(r"^\| (.*) \| (.*) \|$", re.MULTILINE)


def pieces(page):
    """What stands in backquotes in the right column."""
    return [piece for _, here in ROW.findall(page) for piece in re.findall(r"`([^`]+)`", here)]


class FromPython(unittest.TestCase):
    def test_what_the_page_shows_is_in_a_program_that_runs(self):
        program = (ROOT / "tests/consumer/from_python.cpp").read_text(encoding="utf-8")
        program = " ".join(program.split())
        shown = pieces((ROOT / "docs/from_python.md").read_text(encoding="utf-8"))
        self.assertGreater(len(shown), 80)
        for piece in shown:
            self.assertIn(" ".join(piece.split()), program)


if __name__ == "__main__":
    unittest.main()
