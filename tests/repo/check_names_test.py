"""check_names.py accepts a full page and finds what is there too early, too late or not at all."""

import unittest

from tree import Tree
import check_names

HEADER = """/// How; not there yet.
struct Policy {
  int dtype;
};
enum class Strategy {
  kFull,  ///< all
  kNone,  ///< nothing; not there yet
};
class Group {
 public:
  void reshard() const;
};
"""


class CheckNames(Tree):
    def setUp(self):
        super().setUp()
        self.write("include/fsdp/group.h", HEADER)

    def problems(self, *rows, dropped=()):
        listed = [f"| `{name}` | nothing | |" for name in check_names.FSDP1 if name not in dropped]
        self.write("docs/names.md", "\n".join(["| FSDP1 | here | why |", "|---|---|---|", *listed, *rows]) + "\n")
        return [problem.split(": ", 1)[1] for problem in check_names.check(self.root)[0]]

    def test_accepts_what_is_there_and_what_is_not_there_yet(self):
        for row in ("| `a` | `fsdp::Group`, `Group::reshard()` | |", "| `a` | `Strategy::kFull`; not there yet: `Strategy::kNone` | |",
                    "| `a` | not there yet: `Group::unshard` | |", "| `a` | not there yet: `fsdp::Policy`, `Policy::dtype` | |",
                    "| `a` | nothing | `torch::save` |", "| `a`, `b` | not there yet | |"):
            self.assertEqual(self.problems(row), [], row)

    def test_finds_what_is_not_there(self):
        self.assertEqual(self.problems("| `a` | `Group::unshard` | |"), ["no public header declares Group::unshard"])
        self.assertEqual(self.problems("| `a` | nothing | See `Group::unshard`. |"), ["no public header declares Group::unshard"])
        self.assertEqual(self.problems("Text with `fsdp::unshard`."), ["no public header declares fsdp::unshard"])

    def test_finds_what_is_there_by_now(self):
        for name in ("Group::reshard", "Strategy::kFull"):
            self.assertEqual(self.problems(f"| `a` | not there yet: `{name}` | |"),
                             [f"{name} is declared: is it still not there yet?"])

    def test_finds_a_row_that_says_nothing(self):
        for cell in ("", "somewhere", "`torch::save`"):
            self.assertEqual(self.problems(f"| `a` | {cell} | why |"),
                             ["names nothing that is there, nor `nothing` or `not there yet`"], cell)

    def test_finds_an_argument_without_a_row(self):
        self.assertEqual(self.problems(dropped=("wrap", "device_id")),
                         ["FSDP1's device_id has no row", "FSDP1's wrap has no row"])


if __name__ == "__main__":
    unittest.main()
