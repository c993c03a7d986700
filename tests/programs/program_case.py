"""A test case that runs programs with one thread each, and has a folder for their files."""

import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))

from held_port import HeldPortTest  # noqa: E402

TIMEOUT_S = 300
TEXT = "Row, row, row your boat, gently down the stream.\n" * 40
# These flags choose a very small model of gpt, and print a line for each step.
SMALL_GPT = "--dim 16 --layers 2 --heads 2 --seq 16 --sample 0 --log-seconds 0".split()


# Threads of a program that wait for one another are slow while other programs run.
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def run(*command, **options):
    """Runs a command that must succeed, and returns its standard output."""
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", timeout=TIMEOUT_S, check=False, env=ENVIRONMENT, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


class ProgramTest(HeldPortTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, *command, **variables):
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", env=ENVIRONMENT | variables)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def end(self, process):
        """Waits for a process that must succeed, and returns the rest of its output."""
        rest = process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 0, rest)
        return rest

    def run_to_end(self, *command, **variables):
        return self.end(self.start(*command, **variables))

    def assert_close(self, found, expected, relative, absolute=0.0):
        """Compares two lists, or two dictionaries with the same keys."""
        pairs = expected if isinstance(expected, dict) else dict(enumerate(expected))
        found = found if isinstance(found, dict) else dict(enumerate(found))
        self.assertEqual(found.keys(), pairs.keys())
        for key, value in pairs.items():
            self.assertAlmostEqual(found[key], value, delta=relative * abs(value) + absolute, msg=str(key))
