"""Tests what scripts/setup accepts and refuses. A LibTorch is there, so it downloads nothing."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
# Free disk space, dpkg-query's answer for each package, LibTorch's version, status, and the last line of the output.
CASES = (
    (9_000_000, "installed", "2.12.1", 0, "setup: ready"),
    (9_000_000, "installed", "2.10.0", 1, "(named by FSDP_TORCH) is not supported: fsdp needs 2.11 to 2.15"),
    (1_400_000, "installed", "2.12.1", 1, "setup: no disk: 1500 MiB are needed for a release build"),
    (9_000_000, "missing", "2.12.1", 1, "setup: no network: apt-get cannot reach this system's package server"),
)


class Setup(unittest.TestCase):
    def test_takes_the_libtorch_that_is_named_or_says_in_a_line_what_is_missing(self):
        for free, packages, version, status, told in CASES:
            with self.subTest(told), tempfile.TemporaryDirectory() as folder:
                root = pathlib.Path(folder)
                shutil.copytree(SCRIPTS, root / "scripts")
                include = root / "torch/include/torch"
                numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
                for path, text in {
                    include / "headeronly/version.h": "".join(f"#define TORCH_VERSION_{n} {v}\n" for n, v in numbers),
                    include / "csrc/api/include/torch/torch.h": "",
                    root / "bin/df": f"#!/bin/sh\necho header; echo disk 0 0 {free} 0% /\n",
                    root / "bin/dpkg-query": f"#!/bin/sh\necho {packages}\n",
                    root / "bin/apt-get": "#!/bin/sh\necho E: Failed to fetch x; exit 100\n",
                    root / "bin/id": "#!/bin/sh\necho 0\n",
                }.items():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text, encoding="utf-8")
                    path.chmod(0o755)
                environment = {"PATH": f"{root}/bin:{os.environ['PATH']}", "FSDP_TORCH": str(root / "torch")}
                done = subprocess.run([root / "scripts/setup"], env=os.environ | environment, stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, status, done)
                self.assertIn(told, (done.stderr or done.stdout).splitlines()[-1])
                self.assertEqual(len(done.stderr.splitlines()), status)
                self.assertFalse((root / ".venv").exists())


if __name__ == "__main__":
    unittest.main()
