"""Tests that scripts/reference makes the pages of all topics without a warning, and fails at a declaration without a
docstring."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Reference(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def make(self, root):
        command = [root / "scripts/reference", self.folder / "pages"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_has_a_page_of_each_topic_and_no_warning(self):
        made = self.make(ROOT)
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        for topic in re.findall(r"\\defgroup (\w+)", (ROOT / "docs/reference.dox").read_text(encoding="utf-8")):
            page = (self.folder / f"pages/html/group__{topic}.html").read_text(encoding="utf-8")
            self.assertRegex(page, "Classes|Functions", topic)

    def test_fails_at_a_declaration_without_a_docstring(self):
        for name in ("docs", "include", "scripts"):
            shutil.copytree(ROOT / name, self.folder / name)
        with (self.folder / "include/fsdp/error.h").open("a", encoding="utf-8") as header:
            header.write("namespace fsdp {\nvoid nobody_knows();\n}\n")
        made = self.make(self.folder)
        self.assertEqual(made.returncode, 1)
        self.assertIn("nobody_knows() (function) of namespace fsdp is not documented", made.stderr)


if __name__ == "__main__":
    if not shutil.which("doxygen") or not subprocess.check_output(["doxygen", "--version"]).startswith(b"1.9.4"):
        # Other releases of Doxygen give other warnings.
        print("Doxygen 1.9.4 is needed: run scripts/setup")
        sys.exit(77)
    unittest.main()
