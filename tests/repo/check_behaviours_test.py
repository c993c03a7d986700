"""check_behaviours.py accepts rows with tests or reasons and finds the others."""

import unittest

from tree import Tree
import check_behaviours

REASONS = "| reason | |\n|---|---|\n| torch.compile | |\n| not there yet: | and what |\n\n"
HEAD = "| FSDP2 | what | here |\n|---|---|---|\n"


class CheckBehaviours(Tree):
    def setUp(self):
        super().setUp()
        self.write("tests/unit/rows_test.cpp", "TEST(Rows, Add) {}\n")

        self.write("docs/complaints.md", "")

    def check(self, *rows):
        self.write("docs/behaviours.md", REASONS + HEAD + "\n".join(rows) + "\n")
        return check_behaviours.check(self.root)

    def test_accepts_tests_and_reasons(self):
        rows = ("| `test_a` | adds | `Rows.Add` |", "| `test_b`, `test_c` | | torch.compile |",
                "| `test_d` | | not there yet: columns |", "| `test_e` | | half: `Rows.Add`; not there yet: columns |")
        self.assertEqual(self.check(*rows), ([], 5, 2))

    def test_finds_a_test_that_does_not_exist(self):
        self.assertEqual(self.check("| `test_a` | | `Rows.Adds` |")[0], ["`test_a`: there is no test Rows.Adds"])
        self.assertEqual(self.check("| `test_a` | | not there yet: refused by `Rows.Refuses` |")[0],
                         ["`test_a`: there is no test Rows.Refuses"])

    def test_finds_what_is_no_test(self):
        self.assertEqual(self.check("| `test_a` | | `rows` |")[0], ["`test_a`: rows is no test"])

    def test_finds_a_row_without_a_test_or_one_of_the_reasons(self):
        for here in ("", "never mind", "not there yet:", "not there yet"):
            self.assertEqual(self.check(f"| `test_a` | | {here} |")[0],
                             ["`test_a`: neither a test nor one of the reasons"], here)

    def test_finds_what_is_wrong_with_a_complaint(self):
        self.write("docs/complaints.md", "| thread | complaint | here |\n|---|---|---|\n| `#1` | hangs | `Rows.Hang` |\n")
        self.assertEqual(self.check("| `test_a` | | torch.compile |"), (["`#1`: there is no test Rows.Hang"], 2, 1))

    def test_finds_a_behaviour_that_stands_twice(self):
        rows = ("| `test_a` | | torch.compile |", "| `test_b`, `test_a` | | torch.compile |")
        self.assertEqual(self.check(*rows)[0], ["test_a: stands in two rows"])


if __name__ == "__main__":
    unittest.main()
