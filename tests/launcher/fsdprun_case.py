"""A test case that starts fsdprun, and finds the processes that it leaves behind.

Each file of test cases is a program: FILE.py FSDPRUN [unittest arguments]
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))

from held_port import HeldPortTest  # noqa: E402

FSDPRUN = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "fsdprun"
LIMIT_S = 60
# Every process that a test starts inherits this variable, so that those left behind can be found.
MARKER = "FSDPRUN_TEST_MARKER"


def marked_processes(marker):
    """Returns the ids of the living processes that have the marker in their environment."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            is_zombie = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            if not is_zombie and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            pass
    return found


def wait_until(claim, seconds=LIMIT_S):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if claim():
            return True
        time.sleep(0.02)
    return False


class FsdprunTest(HeldPortTest):
    def setUp(self):
        self.marker = uuid.uuid4().hex
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PET_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_"))
        }
        self.environment[MARKER] = self.marker
        self.environment["OMP_NUM_THREADS"] = "1"
        self.environment["D"] = self.folder.name
        # Most ranks that survive in these tests are shells, which have no connections to peers.
        self.environment["PET_PEER_GRACE"] = "2"

    def tearDown(self):
        left = marked_processes(self.marker)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.folder.cleanup()
        self.assertEqual(left, [], "processes were left behind")

    def start(self, *arguments, prefix=(), **options):
        """Starts fsdprun. `prefix` is a command that becomes fsdprun."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*prefix, FSDPRUN, *arguments], env=self.environment, **streams | options)

    def end(self, *processes, status=None):
        """Reads the output of the processes until they have ended, and checks their status if one is given."""
        for process in processes:
            try:
                process.out, process.err = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                self.fail(f"{process.args} hangs")
            if status is not None:
                self.assertEqual(process.returncode, status, process.err)

    def send(self, process, number, status=None):
        """Ends the process with a signal."""
        process.send_signal(number)
        self.end(process, status=status)

    def run_ranks(self, *arguments, **options):
        with self.start(*arguments, **options) as process:
            self.end(process)
        self.assertEqual(marked_processes(self.marker), [], "processes were left behind")
        return process

    def check(self, ranks, script, *flags, status=0, out=None, err=()):
        """Runs a shell script on the ranks. `out` lists the lines of the output in any order, `err` patterns of the
        errors."""
        result = self.run_ranks(*flags, f"--nproc-per-node={ranks}", "sh", "-c", script)
        self.assertEqual(result.returncode, status, result.err)
        if out is not None:
            self.assertEqual(sorted(result.out.splitlines()), sorted(out))
        for pattern in err:
            self.assertRegex(result.err, pattern)
        return result

    def assert_ends(self, process, status, *parts, seconds=30):
        """Expects that the process ends within this time, even if others hold its pipes. `parts` are parts of its
        errors."""
        has_ended = wait_until(lambda: process.poll() is not None, seconds)
        process.kill()
        self.end(process)
        self.assertTrue(has_ended, process.args)
        self.assertEqual(process.returncode, status, process.err)
        for part in parts:
            self.assertIn(part, process.err or "")

    def assert_all_end(self, seconds=10):
        """Expects that the ranks of a launcher that a test killed end after it."""
        self.assertTrue(wait_until(lambda: not marked_processes(self.marker), seconds))

    def take_files(self, *names):
        """Waits until the files exist, and removes them."""
        paths = [self.path / name for name in names]
        self.assertTrue(wait_until(lambda: all(path.exists() for path in paths)), f"no {names}")
        for path in paths:
            path.unlink()
