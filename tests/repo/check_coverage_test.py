"""check_coverage.py accepts a full page and finds each kind of gap."""

import unittest

from tree import Tree
import check_coverage


class CheckCoverage(Tree):
    def write_page(self, changed=None, dropped=(), extra=""):
        changed = changed or {}
        rows = [f"| {n} | what | {changed.get(n, 'open')} |" for n in check_coverage.numbers() if n not in dropped]
        self.write("docs/coverage.md", "\n".join(rows) + "\n" + extra)

    def problems(self):
        return check_coverage.check(self.root)[0]

    def test_accepts_a_page_with_every_number(self):
        self.write("src/layout/rows.cpp", "")
        self.write_page({"A1": "`src/layout/rows.cpp`", "B2": "cannot apply: no such thing in C++"})
        self.assertEqual(check_coverage.check(self.root), ([], len(check_coverage.numbers()) - 2))

    def test_finds_a_missing_page(self):
        self.assertEqual(self.problems(), ["docs/coverage.md is missing"])

    def test_finds_a_missing_number(self):
        self.write_page(dropped=["C44"])
        self.assertEqual(self.problems(), ["C44: no row"])

    def test_finds_a_number_that_stands_twice(self):
        self.write_page(extra="| A1 | what | open |\n")
        self.assertEqual(self.problems(), ["A1: 2 rows"])

    def test_finds_a_number_that_does_not_exist(self):
        self.write_page(extra="| D21 | what | open |\n")
        self.assertEqual(self.problems(), ["D21: there is no such item"])

    def test_finds_a_row_that_says_nothing(self):
        self.write_page({"B7": " "})
        self.assertEqual(self.problems(), ["B7: neither a place nor `open`"])

    def test_finds_a_place_that_does_not_exist(self):
        self.write_page({"D3": "`tests/nowhere.cpp`"})
        self.assertEqual(self.problems(), ["D3: tests/nowhere.cpp does not exist"])


if __name__ == "__main__":
    unittest.main()
