"""check_errors.py accepts a page with every message and finds one that is missing, gone or too short."""

import unittest

from tree import Tree
import check_errors

SOURCE = """
#include "a file whose name is long.h"
// throw Error("a comment that raises nothing");
void check(int rows) {
  if (rows < 0) throw Error(c10::str("expected rows of 'w', found ", rows, ". Give each rank "
                                     "its own rows"));
  require(rows > 1, where, "at most \\"two\\" are wanted here");
  log("this one is for the log");
}
std::string text_of(int rank) {
  return c10::str("rank ", rank, " is somewhere else and says so in many words");
}
"""
ENTRIES = ("`expected rows of 'w', found …`", "`at most \"two\" are wanted here`",
           "`rank … is somewhere else and says so`")


class CheckErrors(Tree):
    def setUp(self):
        super().setUp()
        self.write("src/rows.cpp", SOURCE)

    def problems(self, *entries, text=""):
        rows = [f"| {entry} | `because` |" for entry in entries]
        self.write("docs/errors.md", "\n".join([text, "| message | why |", "|---|---|", *rows]))
        return check_errors.check(self.root)[0]

    def test_accepts_a_page_with_every_message(self):
        self.assertEqual(self.problems(*ENTRIES), [])
        self.assertEqual(self.problems(", ".join(ENTRIES)), [])
        self.assertEqual(check_errors.check(self.root), ([], 3, 3))

    def test_finds_a_missing_page(self):
        self.assertEqual(check_errors.check(self.root)[0], ["docs/errors.md is missing"])

    def test_finds_a_message_that_is_not_on_the_page(self):
        self.assertEqual(self.problems(*ENTRIES[:2]), ["src/rows.cpp:11: not in docs/errors.md: "
                                                       "'rank … is somewhere else and says so in many words'"])
        self.assertEqual(self.problems(*ENTRIES[1:]),
                         ["src/rows.cpp:6: not in docs/errors.md: "
                          "'expected rows of 'w', found …. Give each rank its own rows'"])

    def test_finds_a_message_that_only_text_and_other_columns_have(self):
        self.assertEqual(len(self.problems(*ENTRIES[1:], text=ENTRIES[0])), 1)
        self.assertEqual(len(self.problems(*ENTRIES[1:], "`rank` | " + ENTRIES[0])), 1)

    def test_finds_an_entry_that_nobody_says(self):
        self.assertEqual(self.problems(*ENTRIES, "`expected columns of … found`"),
                         ["docs/errors.md:7: no source says 'expected columns of'"])
        self.assertEqual(self.problems(*ENTRIES, "`a comment that raises nothing`"),
                         ["docs/errors.md:7: no source says 'a comment that raises nothing'"])

    def test_finds_an_entry_that_stands_for_too_many(self):
        self.write("src/many.cpp", "".join(f'void f{i}() {{ throw Error("expected the number {i} of it"); }}\n'
                                           for i in range(check_errors.MOST + 1)))
        self.assertEqual(self.problems(*ENTRIES, "`expected the number …`"),
                         ["docs/errors.md:7: 'expected the number' says too little: "
                          f"{check_errors.MOST + 1} messages have it"])

    def test_leaves_out_help_texts_and_tests(self):
        self.write("apps/tool/main.cpp", 'app.add_option("--rows", rows, "Rows that each rank has")->check(count());\n')
        self.write("src/rows_test.cpp", 'throw Error("this is what a test throws");\n')
        self.assertEqual(self.problems(*ENTRIES), [])


if __name__ == "__main__":
    unittest.main()
