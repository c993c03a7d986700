"""The pictures in docs/pictures are what draw.py there draws, and pages show them with a text beside them.

Draws them anew only with the release of matplotlib that scripts/setup installs, and else ends with 77.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PICTURES = ROOT / "docs" / "pictures"
PYTHON = ROOT / ".venv" / "bin" / "python"
MAX_BYTES = 60_000
EMBEDDED = re.compile(r"!\[([^\]]*)\]\(pictures/([\w.]+)\)")


def missing():
    """Why the script cannot be run to the same bytes, or nothing."""
    wanted = re.search(r"^matplotlib=(\S+)$", (ROOT / "scripts" / "setup").read_text(encoding="utf-8"), re.MULTILINE)[1]
    if not PYTHON.exists():
        return "there is no .venv: run scripts/setup"
    found = subprocess.run([PYTHON, "-c", "import matplotlib; print(matplotlib.__version__)"], capture_output=True,
                           text=True, check=False).stdout.strip()
    return None if found == wanted else f"matplotlib {wanted} is needed, found {found or 'none'}: run scripts/setup"


MISSING = missing()


class Pictures(unittest.TestCase):
    @unittest.skipIf(MISSING, MISSING)
    def test_are_what_the_script_draws_to_the_byte(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([PYTHON, "-B", PICTURES / "draw.py", folder], check=True)
            drawn = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
        committed = {path.name: path.read_bytes() for path in PICTURES.glob("*.svg")}
        self.assertEqual(drawn.keys(), committed.keys())
        for name, picture in drawn.items():
            self.assertEqual(picture, committed[name], f"{name}: run docs/pictures/draw.py and commit what it gives")

    def test_are_small_and_have_a_background(self):
        for path in PICTURES.glob("*.svg"):
            self.assertLess(path.stat().st_size, MAX_BYTES, path.name)
            first_patch = path.read_text(encoding="utf-8").split('id="patch_1"')[1].split("/>")[0]
            self.assertIn("fill: #ffffff", first_patch, path.name)

    def test_are_shown_with_a_text_beside_them(self):
        shown = {}
        for page in (ROOT / "docs").glob("*.md"):
            for text, name in EMBEDDED.findall(page.read_text(encoding="utf-8")):
                self.assertGreater(len(text.split()), 5, f"{page.name}: {name}")
                shown[name] = page.name
        self.assertEqual(shown.keys(), {path.name for path in PICTURES.iterdir() if path.suffix in (".svg", ".png")})


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
