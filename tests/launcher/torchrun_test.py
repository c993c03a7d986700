"""The same program under PyTorch's torchrun and under fsdprun.

    python3 torchrun_test.py GPT FSDPRUN TORCHRUN

Returns 77, for ctest a skipped test, if there is no TORCHRUN.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

GPT = FSDPRUN = TORCHRUN = ""
SMALL = "--dim 16 --layers 2 --heads 2 --seq 16 --steps 6 --batch 2 --eval-every 0 --sample 0 --log-seconds 0".split()
NO_TORCHRUN = 77


class UnderTorchrun(unittest.TestCase):
    def losses(self, *launcher):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text"
            text.write_text("Row, row, row your boat, gently down the stream.\n" * 40, encoding="utf-8")
            done = subprocess.run([*launcher, GPT, "--text", str(text), *SMALL], capture_output=True, text=True,
                                  timeout=120, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("characters/s on 2 ranks", done.stdout)
        return re.findall(r"step \d/6 +loss (\d+\.\d+)", done.stdout)

    def test_two_ranks_train_as_under_fsdprun(self):
        expected = self.losses(FSDPRUN, "--nproc_per_node", "2")
        self.assertEqual(len(expected), 6)
        found = self.losses(TORCHRUN, "--standalone", "--no-python", "--nproc_per_node", "2")
        self.assertEqual(found, expected)


if __name__ == "__main__":
    GPT, FSDPRUN, TORCHRUN = (sys.argv.pop(1) for _ in range(3))
    if not pathlib.Path(TORCHRUN).exists():
        print(f"there is no {TORCHRUN}")
        sys.exit(NO_TORCHRUN)
    unittest.main()
