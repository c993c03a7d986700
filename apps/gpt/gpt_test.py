"""Trains small GPTs, alone and as two ranks, and checks what gpt prints.

    python3 gpt_test.py GPT FSDPRUN
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

GPT = FSDPRUN = ""
SMALL = "--dim 16 --layers 2 --heads 2 --seq 16 --steps 4 --eval-every 2 --warmup 1 --sample 12 --log-seconds 0".split()
TIMEOUT = 120
TEXT = "".join(f"{i} bottles of beer on the wall, take one down, pass it around.\n" for i in range(40))


class Training(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.text = pathlib.Path(folder.name) / "text"
        self.text.write_text(TEXT, encoding="utf-8")

    def run_gpt(self, *words, world=1):
        launcher = [FSDPRUN, "--nproc_per_node", str(world)] if world > 1 else []
        command = [*launcher, GPT, "--text", str(self.text), *SMALL, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)

    def train(self, *words, world=1):
        done = self.run_gpt(*words, world=world)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_prints_groups_progress_validation_sample_and_memory(self):
        output = self.train("--batch", 2, world=2)
        for pattern in (r"blocks\.1", r"group", r"step 4/4 +loss \d\.\d+ .* tokens/s .* left",
                        r"step 2: validation loss \d\.\d+", r"step 4: validation loss", r"sample:", r"unsharded",
                        r"rank 0 ", r"rank 1 ", r"characters/s on 2 ranks"):
            self.assertRegex(output, pattern)

    def test_each_of_two_ranks_holds_about_half(self):
        output = self.train("--batch", 2, world=2)
        shares = {}
        for line in re.findall(r"(rank \d(?: +\d+\.\d+ MB +\d+\.\d %){4})", output):
            shares[line[:6]] = [float(share) for share in re.findall(r"(\d+\.\d) %", line)]
        self.assertEqual(sorted(shares), ["rank 0", "rank 1"], output)
        for values in shares.values():
            for share in values[:3]:  # parameters, gradients, optimizer state
                self.assertTrue(40 <= share <= 60, output)
        for column in range(3):
            self.assertAlmostEqual(sum(values[column] for values in shares.values()), 100, delta=0.2)

    def test_two_ranks_train_as_one_with_the_joined_batch(self):
        def losses(batch, world):
            output = self.train("--batch", batch, "--steps", 10, "--lr", 0.02, world=world)
            return [float(loss) for loss in re.findall(r"step \d+/10 +loss (\d+\.\d+)", output)]

        one, two = losses(batch=4, world=1), losses(batch=2, world=2)
        self.assertEqual(len(one), 10)
        for ours, expected in zip(two, one, strict=True):
            self.assertAlmostEqual(ours, expected, delta=0.0011)  # three digits are printed

    def test_trains_alone_on_the_text_it_carries(self):
        command = [GPT, *SMALL, "--seq", "64", "--batch", "64", "--eval-every", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"tok: .*\n +weight \[65, 16\]")

    def test_reports_a_text_that_is_missing_or_too_short(self):
        missing = self.run_gpt("--text", "no such file")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("no such file", missing.stderr)
        self.text.write_text("short", encoding="utf-8")
        short = self.run_gpt()
        self.assertEqual(short.returncode, 1)
        self.assertRegex(short.stderr, "^gpt: .*too short|^gpt: .*expected at least")

    def test_reports_wrong_values(self):
        done = self.run_gpt("--heads", 3)
        self.assertEqual(done.returncode, 1)
        self.assertIn("heads", done.stderr)
        done = self.run_gpt("--steps", 0)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--steps", done.stderr)


if __name__ == "__main__":
    GPT, FSDPRUN = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
