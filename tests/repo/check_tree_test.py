"""check_tree.py accepts a good tree and finds each thing that does not belong."""

import unittest

from tree import Tree
import check_tree


class CheckTree(Tree):
    def assert_finds(self, text):
        problems, _ = check_tree.check(self.root)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(text, problems[0])

    def test_accepts_ordinary_files(self):
        self.write("README.md", "[design](docs/design.md), [web](https://example.org/x), `include/fsdp/root/x.h`\n")
        self.write("docs/design.md", "see ../shared/work/notes; `[](const T& x) {}`\n")
        self.assertEqual(check_tree.check(self.root), ([], []))

    def test_finds_a_path_of_one_machine(self):
        for folder in ("work", "root", "home/someone"):
            with self.subTest(folder):
                self.write("src/a.cpp", f'open("/{folder}/file");\n')
                self.assert_finds("path of one machine")

    def test_finds_a_package_index(self):
        self.write("scripts/setup", "pip install --extra-index" + "-url=x y\n")
        self.assert_finds("package index")

    def test_finds_a_long_file_and_warns_of_a_longish_one(self):
        self.write("src/long.cpp", "\n" * (check_tree.MAX_LINES + 1))
        self.write("src/longish.cpp", "\n" * (check_tree.WARN_LINES + 1))
        self.assert_finds("src/long.cpp")
        self.assertEqual(len(check_tree.check(self.root)[1]), 1)

    def test_finds_a_large_file(self):
        self.write("data/big.txt", "x" * (check_tree.MAX_BYTES + 1))
        self.assert_finds("bytes, more than")

    def write_picture(self, content):
        self.write("docs/pictures/a.png", "")
        (self.root / "docs/pictures/a.png").write_bytes(content)

    def test_accepts_a_picture_and_finds_one_that_is_large_or_none(self):
        self.write_picture(check_tree.PNG + b"\xff")
        self.assertEqual(check_tree.check(self.root), ([], []))
        self.write_picture(check_tree.PNG + bytes(check_tree.MAX_PICTURE_BYTES))
        self.assert_finds("for a picture")
        self.write_picture(b"\xff")
        self.assert_finds("not a PNG file")

    def test_finds_a_link_to_nowhere(self):
        self.write("README.md", "[gone](docs/gone.md)\n")
        self.assert_finds("does not exist")

    def test_finds_a_library_that_clashes_with_libtorch(self):
        self.write("CMakeLists.txt", "find_package(Gloo REQUIRED)\n")
        self.assert_finds("clashes")

    def test_finds_gloo_headers_in_two_units(self):
        for name in ("a", "b"):
            self.write(f"src/{name}.cpp", "#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>\n")
        self.assert_finds("one unit only")


if __name__ == "__main__":
    unittest.main()
