"""Trains a few steps with the scripts of torch's engines and with mnist and gpt, and compares the losses.

    python3 peers_test.py MNIST GPT FSDPRUN
"""

import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest

MNIST = GPT = FSDPRUN = ""
PEERS = pathlib.Path(__file__).resolve().parent
TORCHRUN = PEERS.parent.parent / ".venv" / "bin" / "torchrun"
TEXT = "".join(f"{i} bottles of beer on the wall , take one down .\n" for i in range(60)) + "a <unk> bottle"


class Peers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_ranks(self, *words):
        return subprocess.run([*map(str, words), "--data", self.folder, "--no-cuda"], capture_output=True, text=True,
                              env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}, timeout=240,
                              check=False)

    def assert_alike(self, program, words, key, pattern, delta):
        """Checks that the numbers that `pattern` finds in our output equal those under `key` in FSDP2's result, up
        to `delta`. Returns both."""
        two = "--nproc_per_node", 2
        ours = self.run_ranks(FSDPRUN, "--no-prefix", *two, program, *words.split())
        self.assertEqual(ours.returncode, 0, ours.stdout + ours.stderr)
        script = PEERS / f"{pathlib.Path(program).name}.py"
        theirs = self.run_ranks(TORCHRUN, "--standalone", *two, script, "--engine", "fsdp2", *words.split())
        results = [json.loads(line) for line in theirs.stdout.splitlines() if line.startswith("{")]
        # torch's processes may abort after they have printed the result, so their status is not checked.
        self.assertEqual(len(results), 1, theirs)
        expected = re.findall(pattern, ours.stdout)
        self.assertGreater(len(expected), 1)
        for found, number in zip(results[0][key], map(float, expected), strict=True):
            self.assertAlmostEqual(found, number, delta=delta)
        return ours.stdout, results[0]

    def test_mnist_trains_as_ours(self):
        for part, count in (("train", 41), ("t10k", 20)):  # The count is odd, so one image is seen twice.
            draw = random.Random(count)
            (self.folder / f"{part}-images-idx3-ubyte").write_bytes(
                struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + draw.randbytes(count * 28 * 28))
            (self.folder / f"{part}-labels-idx1-ubyte").write_bytes(
                struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(draw.randrange(10) for _ in range(count)))
        ours, theirs = self.assert_alike(MNIST, "--batch-size 8 --epochs 2 --no-dropout --lr 0.1", "losses",
                                         r"Train Epoch: \d+  Loss: (\S+)", 1e-4)
        self.assertEqual(f"{theirs['accuracy']:.2f}", re.findall(r"\((\S+)%\)", ours)[-1])

    def test_gpt_trains_as_ours(self):
        (self.folder / "train.txt").write_text(TEXT, encoding="utf-8")
        (self.folder / "valid.txt").write_text(TEXT[:900] + " absent\n", encoding="utf-8")
        self.assert_alike(GPT, "--dim 16 --layers 2 --heads 2 --seq 16 --warmup 2 --batch 2 --tokenizer words "
                          "--epochs 2 --update-freq 2", "validation_losses", r": validation loss (\S+) nats", 2e-4)


if __name__ == "__main__":
    MNIST, GPT, FSDPRUN = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
    if not TORCHRUN.is_file():
        print("There is no Python's torch in .venv: run scripts/setup")
        sys.exit(77)
    unittest.main()
