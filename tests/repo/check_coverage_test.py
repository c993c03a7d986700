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
        self.write_page({"A1": "`src/layout/rows.cpp`; open: columns", "B2": "cannot apply: no such thing in C++"})
        self.assertEqual(check_coverage.check(self.root), ([], len(check_coverage.numbers()) - 2, 1))

    def test_accepts_what_exists(self):
        self.write("tests/unit/rows_test.cpp", "TEST(Rows, Add) {}\nTEST_P(Rows,\n       AddTwice) {}\n")
        self.write("apps/run/run_test.py", "class Runs(Case):\n    def test_ends(self):\n        pass\n")
        self.write("apps/run/main.cpp", 'add_option(app, "--node-rank", rank);\nadd(app, "-t,--tee", tee);\n')
        self.write("include/fsdp/group.h", "class Group {\n  void reshard() const;\n};\nGroup shard();\n")
        places = ("`Rows.Add`", "`Rows.AddTwice`", "`Runs.test_ends`", "`run --node_rank 1 --tee 3`", "`fsdp::shard(net)`",
                  "`Group::reshard()`", "`torch::save` of `tests/unit/rows_test.cpp`")
        for place in places:
            self.write_page({"A1": place})
            self.assertEqual(self.problems(), [], place)

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
        self.assertEqual(self.problems(), ["D3: tests/nowhere.cpp is no file"])
        self.write_page({"D3": "`test/nowhere`, `Nowhere.md`"})
        self.assertEqual(self.problems(), ["D3: test/nowhere is no file", "D3: Nowhere.md is no file"])

    def test_finds_a_folder_instead_of_a_file(self):
        self.write("tests/unit/rows_test.cpp", "")
        self.write_page({"A2": "`tests/unit`", "A3": "`tests/unit/`"})
        self.assertEqual(self.problems(), ["A2: tests/unit is no file", "A3: tests/unit/ is no file"])

    def test_finds_a_test_that_does_not_exist(self):
        self.write("tests/unit/rows_test.cpp", "TEST(Rows, Add) {}\n")
        self.write_page({"B1": "`Rows.Adds`", "B2": "`Row.Add`"})
        self.assertEqual(self.problems(), ["B1: there is no test Rows.Adds", "B2: there is no test Row.Add"])

    def test_finds_a_declaration_that_does_not_exist(self):
        self.write("include/fsdp/group.h", "class Group {\n  void reshard() const;  // not unshard\n};\n")
        self.write_page({"C1": "`Group::unshard`", "C2": "`fsdp::shard`"})
        self.assertEqual(self.problems(), ["C1: no public header declares Group::unshard",
                                           "C2: no public header declares fsdp::shard"])

    def test_finds_a_flag_that_does_not_exist(self):
        self.write("apps/run/main.cpp", 'add(app, "--tee", tee);\n')
        self.write("apps/train/main.cpp", 'add(app, "--steps", steps);\n')
        self.write_page({"D1": "`run --te 3`", "D2": "`run --tee 3 train --tee 3`"})
        self.assertEqual(self.problems(), ["D1: run has no flag --te", "D2: train has no flag --tee"])

    def test_finds_flags_that_programs_share(self):
        self.write("apps/frame/mesh_flags.cpp", 'add(app, "--mesh", mesh);\n')
        self.write("apps/run/main.cpp", "add_mesh_flags(app);\n")
        self.write("apps/train/main.cpp", "")
        self.write_page({"D1": "`run --mesh 2x2`", "D2": "`train --mesh 2x2`"})
        self.assertEqual(self.problems(), ["D2: train has no flag --mesh"])

    def test_finds_a_row_that_names_nothing_to_look_at(self):
        self.write_page({"A1": "everywhere", "A2": "`UsageError`"})
        self.assertEqual(self.problems(), [f"{n}: names no file, test, declaration or program" for n in ("A1", "A2")])

    def test_finds_what_is_wrong_in_rows_that_are_open_but_for_something(self):
        self.write_page({"A1": "open but for `src/nowhere.cpp`"})
        self.assertEqual(self.problems(), ["A1: src/nowhere.cpp is no file"])


if __name__ == "__main__":
    unittest.main()
