"""The public headers have a docstring at every declaration, and scripts/reference makes their reference without a warning.

Run by hand or by ctest; ends with 77 where Doxygen, which scripts/setup installs, is missing or not the release whose
warnings are known.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from tree import Tree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KNOWN_DOXYGEN = "1.9.4"

# Behind it, what it declares; in front of it a template's head may stand.
SCOPE = re.compile(r"(?:^|> |\) )(namespace|class|struct|enum class)\b[^;(=]*{$")
# What has its docstring elsewhere, or says all: forward declarations, guards that are not copied, destructors.
NEEDS_NONE = re.compile(r"(?:class|struct) \w+;|.*= (?:delete|default);|(?:virtual )?~|friend |#|}|static_assert")
ACCESS = re.compile(r"(public|protected|private):")
MARKERS = ("/// \\addtogroup", "/// \\name", "/// \\{", "/// \\}")


def undocumented(text):
    """Lines, from 1, of the declarations of a header that have no docstring: in namespace fsdp but not in detail, in
    classes those that are public or protected. The text is as clang-format leaves it."""
    scopes = []  # of each open one whether what is in it counts
    documented = False
    declaration = None  # its first line, whether it has a docstring, and what of it is open
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        code = re.sub(r'"(?:\\.|[^"\\])*"|\'[^\']\'', "", re.sub(r"\s*//.*", "", words))
        if declaration is None:
            if words.startswith("///"):
                documented = not words.startswith(MARKERS)
                continue
            if not code or words.startswith(("//", "#")):
                documented = documented and words != ""
                continue
            if access := ACCESS.fullmatch(code):
                scopes[-1] = access[1] != "private"
                continue
            if code.startswith("}"):
                scopes.pop()
                documented = False
                continue
            declaration = [number, documented, ""]
        declaration[1] |= "///<" in words
        declaration[2] = f"{declaration[2]} {code}".strip()
        first, has_docstring, so_far = declaration
        scope = SCOPE.search(so_far)
        is_open = so_far.count("{") > so_far.count("}") or so_far.count("(") > so_far.count(")")
        if not scope and (is_open or not so_far.endswith((";", "}", ","))):
            continue
        is_namespace = scope is not None and scope[1] == "namespace"
        if not has_docstring and all(scopes) and not is_namespace and not NEEDS_NONE.match(so_far):
            yield first
        if scope:
            named = re.match(r"namespace (\w+)", so_far)
            scopes.append(named is None or named[1] == "fsdp" and "detail" not in so_far)
        declaration, documented = None, False


def found_doxygen():
    """The release, or nothing."""
    if shutil.which("doxygen") is None:
        return None
    return subprocess.run(["doxygen", "--version"], capture_output=True, text=True, check=True).stdout.split()[0]


def run_reference(root, folder, **variables):
    return subprocess.run([root / "scripts" / "reference", folder], capture_output=True, text=True, timeout=300,
                          env=os.environ | variables, check=False)


class Docstrings(unittest.TestCase):
    def test_every_public_declaration_has_one(self):
        missing = [f"{path.name}:{line}" for path in sorted((ROOT / "include" / "fsdp").glob("*.h"))
                   for line in undocumented(path.read_text(encoding="utf-8"))]
        self.assertEqual(missing, [])

    def test_what_has_none_is_found(self):
        text = """namespace fsdp {
class Later;
/// \\addtogroup sharding
/// \\{
void first();
/// Does something.
void second(int a,
            int b);
template <class T>
  requires(sizeof(T) > 1)
struct Third {
  /// Copies.
  Third(const Third&);
  Third& operator=(const Third&) = delete;
  int fourth = 0;
  int fifth = 0;  ///< a number

 private:
  int sixth_ = 0;
};
namespace detail {
void seventh();
}  // namespace detail
/// Which.
enum class Eighth : uint8_t {
  kOne,  ///< the first
  kTwo,
};
inline int ninth() {
  if (true) return 1;
  return 2;
}
}  // namespace fsdp
"""
        self.assertEqual(list(undocumented(text)), [5, 9, 15, 27, 29])


class OtherDoxygen(Tree):
    def run_with(self, version):
        """Another Doxygen takes its settings, and shows them."""
        program = self.root / "bin" / "doxygen"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n[ \"$1\" = - ] && exec cat >&2\necho '{version}'\n", encoding="utf-8")
        program.chmod(0o755)
        return run_reference(ROOT, self.root / "pages", PATH=f"{program.parent}:{os.environ['PATH']}")

    def test_an_older_one_is_a_sentence(self):
        made = self.run_with("1.9.1")
        self.assertEqual((made.returncode, made.stderr),
                         (77, "reference: Doxygen 1.9.4 or a newer one is needed, found 1.9.1\n"))

    def test_warnings_of_a_newer_one_are_no_errors(self):
        made = self.run_with("1.12.0 (0123abc)")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("WARN_AS_ERROR = NO\n", made.stderr)

    def test_warnings_of_the_known_one_are(self):
        made = self.run_with(KNOWN_DOXYGEN)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertNotIn("WARN_AS_ERROR", made.stderr)


class Reference(Tree):
    def setUp(self):
        super().setUp()
        found = found_doxygen()
        if found != KNOWN_DOXYGEN:
            self.skipTest(f"Doxygen {KNOWN_DOXYGEN} is needed, found {found or 'none'}: run scripts/setup")
        self.folder = self.root / "pages"

    def copy(self):
        for name in ("docs", "include", "scripts"):
            shutil.copytree(ROOT / name, self.root / name)

    def test_is_made_without_a_warning_and_begins_with_a_map_of_all_topics(self):
        made = run_reference(ROOT, self.folder)
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        self.assertEqual(made.stdout, f"reference: {self.folder}/html/index.html\n")
        first_page = (self.folder / "html" / "index.html").read_text(encoding="utf-8")
        topics = re.findall(r"\\defgroup (\w+)", (ROOT / "docs" / "reference.dox").read_text(encoding="utf-8"))
        self.assertGreater(len(topics), 5)
        for topic in topics:
            self.assertIn(f'href="group__{topic}.html"', first_page)
            page = (self.folder / "html" / f"group__{topic}.html").read_text(encoding="utf-8")
            self.assertRegex(page, "Classes|Functions", topic)

    def test_every_header_has_a_topic(self):
        for path in sorted((ROOT / "include" / "fsdp").glob("*.h")):
            text = path.read_text(encoding="utf-8")
            if "namespace fsdp" in text and "namespace fsdp::detail" not in text:
                with self.subTest(path.name):
                    self.assertEqual(len(re.findall(r"^/// \\addtogroup \w+\n/// \\{$", text, re.MULTILINE)), 1)

    def test_fails_at_a_declaration_without_a_docstring(self):
        self.copy()
        path = self.root / "include" / "fsdp" / "error.h"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("/// A rank died", "void nobody_knows();\n\n/// A rank died"), encoding="utf-8")
        made = run_reference(self.root, self.folder)
        self.assertEqual(made.returncode, 1)
        self.assertIn("nobody_knows() (function) of namespace fsdp is not documented", made.stderr)

    def test_fails_at_a_reference_to_nothing(self):
        self.copy()
        path = self.root / "docs" / "reference.dox"
        path.write_text(path.read_text(encoding="utf-8") + "\n/// \\page p A page\n/// \\ref nowhere\n", encoding="utf-8")
        made = run_reference(self.root, self.folder)
        self.assertEqual(made.returncode, 1)
        self.assertIn("nowhere", made.stderr)


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
