"""What the tests of compare share: a folder with programs that print known figures and log how they were called."""

import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

COMPARE = pathlib.Path(__file__).resolve().parent / "compare"


class CompareCase(unittest.TestCase):
    """A derived class gives `compare(*words, **known)`, which writes the programs and ends with `run_compare`."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")
        path.chmod(0o700)

    def run_compare(self, names, words):
        """names: of the programs in the folder that compare is to start."""
        programs = [f"--{name}={self.folder / name}" for name in names]
        return subprocess.run([sys.executable, "-B", COMPARE, *programs, *map(str, words)], capture_output=True,
                              text=True, timeout=60, check=False)

    def lines(self, *words, **known):
        done = self.compare(*words, **known)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def runs(self):
        """A line for each call of a program, its name first."""
        return (self.folder / "log").read_text(encoding="utf-8").splitlines()
