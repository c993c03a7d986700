"""Runs the same program under PyTorch's torchrun and under fsdprun.

    python3 torchrun_test.py GPT FSDPRUN TORCHRUN

Exits with 77, which ctest reports as skipped, if there is no TORCHRUN.
"""

import pathlib
import re
import sys
import unittest

from program_case import SMALL_GPT, TEXT, ProgramTest, run

GPT = FSDPRUN = TORCHRUN = ""
NO_TORCHRUN = 77


class UnderTorchrun(ProgramTest):
    def losses(self, *launcher):
        text = self.folder / "text"
        text.write_text(TEXT, encoding="utf-8")
        output = run(*launcher, GPT, "--text", text, *SMALL_GPT, *"--steps 6 --batch 2 --eval-every 0".split())
        self.assertIn("characters/s on 2 ranks", output)
        return re.findall(r"step \d/6 +loss (\d+\.\d+)", output)

    def test_two_ranks_train_as_under_fsdprun(self):
        expected = self.losses(FSDPRUN, "--nproc_per_node", "2")
        self.assertEqual(len(expected), 6)
        self.assertEqual(self.losses(TORCHRUN, "--standalone", "--no-python", "--nproc_per_node", "2"), expected)


if __name__ == "__main__":
    GPT, FSDPRUN, TORCHRUN = (sys.argv.pop(1) for _ in range(3))
    if not pathlib.Path(TORCHRUN).exists():
        print(f"there is no {TORCHRUN}")
        sys.exit(NO_TORCHRUN)
    unittest.main()
