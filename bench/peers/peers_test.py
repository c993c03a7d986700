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
TIMEOUT = 240
TEXT = "".join(f"{i} bottles of beer on the wall , take one down .\n" for i in range(60)) + "a <unk> bottle"


@unittest.skipUnless(TORCHRUN.is_file(), "there is no .venv with Python's torch")
class Peers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_ranks(self, launcher, *words):
        done = subprocess.run([*map(str, launcher), "--nproc_per_node", "2", *map(str, words), "--no-cuda"],
                              env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
                              capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if launcher[0] == FSDPRUN:  # torch's processes may abort after their result
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def both(self, program, script, *words):
        """What ours prints, and the result of FSDP2."""
        ours = self.run_ranks([FSDPRUN, "--no-prefix"], program, *words)
        theirs = self.run_ranks([TORCHRUN, "--standalone"], PEERS / script, "--engine", "fsdp2", *words)
        results = [json.loads(line) for line in theirs.splitlines() if line.startswith("{")]
        self.assertEqual(len(results), 1, theirs)
        return ours, results[0]

    def assert_alike(self, found, expected, delta):
        self.assertGreater(len(expected), 1)
        for theirs, ours in zip(found, map(float, expected), strict=True):
            self.assertAlmostEqual(theirs, ours, delta=delta)

    def write_images(self, part, count):
        numbers = random.Random(count)
        (self.folder / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + numbers.randbytes(count * 28 * 28))
        (self.folder / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(numbers.randrange(10) for _ in range(count)))

    def test_mnist_trains_as_ours(self):
        self.write_images("train", 41)  # an odd number, so one image is seen twice
        self.write_images("t10k", 20)
        ours, theirs = self.both(MNIST, "mnist.py", "--data", self.folder, "--batch-size", 8, "--epochs", 3,
                                 "--no-dropout", "--lr", 0.1)
        self.assert_alike(theirs["losses"], re.findall(r"Train Epoch: \d+  Loss: (\S+)", ours), 1e-4)
        self.assert_alike(theirs["test_losses"], re.findall(r"Average loss: ([\d.]+)", ours), 2e-4)
        self.assertEqual(f"{theirs['accuracy']:.2f}", re.findall(r"\((\S+)%\)", ours)[-1])

    def test_gpt_trains_as_ours(self):
        (self.folder / "train.txt").write_text(TEXT, encoding="utf-8")
        (self.folder / "valid.txt").write_text(TEXT[:900] + " absent\n", encoding="utf-8")
        small = ["--data", self.folder, "--warmup", 2, "--batch", 2]
        for flag, value in {"--dim": 16, "--layers": 2, "--heads": 2, "--seq": 16}.items():
            small += [flag, value]
        for words in (["--tokenizer", "words", "--epochs", 2, "--update-freq", 2],
                      ["--steps", 6, "--eval-every", 3, "--no-reshard-after-forward"]):
            with self.subTest(words):
                ours, theirs = self.both(GPT, "gpt.py", *small, *words)
                self.assert_alike(theirs["validation_losses"],
                                  re.findall(r"step \d+: validation loss (\S+) nats", ours), 2e-4)


if __name__ == "__main__":
    MNIST, GPT, FSDPRUN = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
