"""Runs compare with programs that print known figures.

    python3 compare_test.py
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

COMPARE = pathlib.Path(__file__).resolve().parent / "compare"
# Every program is this script. It appends its name and arguments to a log, and prints the figures of its n-th run.
PROGRAM = r"""#!/usr/bin/env python3
import json, pathlib, sys
path, words = pathlib.Path(sys.argv[0]), sys.argv[1:]
if path.name == "fsdprun":
    import os
    assert words[:3] == ["--no-prefix", "--nproc_per_node", "2"], words
    os.execv(words[3], words[3:])
name = words[words.index("--engine") + 1] if path.name == "torchrun" else path.name
log = path.with_name("log")
runs = log.read_text().splitlines() if log.exists() else []
number = sum(run.startswith(name) for run in runs)
log.write_text("\n".join([*runs, f"{name} {' '.join(words)}"]) + "\n")
disk = lambda seconds, plain: dict(seconds=seconds, mb_per_s=100, of_plain=plain)
if name == "mnist":
    print("Train Epoch: 1  Loss: 0.250000\nTest set: Average loss: 0.0600, Accuracy: 97/100 (97.00%)\n"
          "Train Epoch: 2  Loss: 0.125000\nTest set: Average loss: 0.0500, Accuracy: 98/100 (98.00%)\n"
          "Elapsed: 4.00 s")
elif name == "gpt":
    print("step 4: validation loss 5.0000 nats per word, perplexity 148.41\n"
          "step 8: validation loss 5.0000 nats per word, perplexity 54.60\n"
          "1000 words in 3 s, 250 words/s on 2 ranks; validation loss 4.00001 nats per word, perplexity 54.5982")
elif name == "bench" and "--versus" in words:
    print(json.dumps(dict(ratio=1.05, ratio_95=[1.04, 1.0625], ms_per_step=[105.0, 100.0], pairs=60)))
elif name == "bench" and words[0] == "overhead":
    spread = lambda value: dict(median=value, quartiles=[value, value])
    print(json.dumps(dict(rows=[dict(sharded=dict(step=spread(12)), plain=dict(step=spread(8)), overhead=spread(4))])))
elif name == "bench":
    print(json.dumps(dict(tokens_per_s=[200, 100, 300][number % 3], pss_mb=50, losses=[2.0, 4.0], engine="fsdp",
                          world=2, megabytes=100, save=disk(1, 0.9), load=disk(4, 0.8))))
elif name != "plot":
    print("a line of another kind")
    print(json.dumps(dict(tokens_per_s=100 if name == "fsdp2" else 400, pss_mb=100, engine=f"torch-{name}", world=2,
                          seconds=8, whole_seconds=1, peak_rss_mb=[1, 1], accuracy=96.5, perplexity=55.0,
                          megabytes=110, save=disk(2, 0), load=disk(2, 0), validation_losses=[5.0, 4.0],
                          step=108, plain=8, overhead=100,
                          losses=[0.25, 0.125] if "--data" in words else [2.0, 4.0])))
    sys.exit(134)  # as torch's processes sometimes do after their result
"""
# Each entry has flags of compare, rows of its table, and the programs in the order in which compare runs them.
RUNS = (
    (["--rounds", "3", "--backend", "shm"],
     ["| figure | 9M |", "| tokens/s, ours : torch-fsdp2 | 2.000 (1.000 to 3.000) |",
      "| tokens/s, ours : torch-ddp | 0.500 (0.250 to 0.750) |", "| tokens/s, at the bound : torch-fsdp2 | 2.100 |",
      "| PSS of rank 0, ours : torch-fsdp2 | 0.500 (0.500 to 0.500) |", "| our step : bound | 1.050 (1.040 to 1.062) |",
      "| losses, largest relative difference | 0.0e+00 |", "| our losses the same bits in every round | yes |"],
     "bench fsdp2 ddp fsdp2 ddp bench ddp bench fsdp2 bench"),
    (["--rounds", "1", "--precision", "bf16"],
     ["| tokens/s, torch-fsdp2, bf16 : fp32 | 1.000 (1.000 to 1.000) |"], "bench fsdp2 bench fsdp2"),
    (["--program", "choices", "--rounds", "2", "--picture", "p.png"],
     ["| figure | 9M: tokens/s | 9M: speed | 9M: MB |", "| fsdp, replicated, Gloo | 200 | 0.50 (0.50 to 0.50) | 50 |",
      "| PyTorch's FSDP2 | 100 | 0.25 (0.25 to 0.25) | 100 |",
      "9M: losses differ by 0.0e+00 at most, relative to PyTorch's DDP"],
     "bench bench bench bench fsdp2 ddp bench bench bench fsdp2 ddp bench plot"),
    (["--program", "checkpoint", "--rounds", "1"],
     ["| speed, save, ours : torch-dcp | 2.000 (2.000 to 2.000) |",
      "| speed, load, ours : a plain read of the same bytes | 0.800 (0.800 to 0.800) |"], "bench fsdp2"),
    (["--program", "overhead", "--rounds", "2", "--backend", "shm", "--groups", "10"],
     ["| figure | 10 groups |", "| us, step, unsharded, ours | 8.0 (8.0 to 8.0) |",
      "| us, step, torch-fsdp2 | 108.0 (108.0 to 108.0) |",
      "| overhead, ours : torch-fsdp2 | 0.0400 (0.0400 to 0.0400) |"], "bench fsdp2 fsdp2 bench"),
    (["--program", "mnist", "--rounds", "1", "--", "--data", "folder"],
     ["| speed, training, ours : torch-fsdp2 | 2.000 (2.000 to 2.000) |",
      "| accuracy, ours | 98.000 (98.000 to 98.000) |", "| losses, largest relative difference | 0.0e+00 |"],
     "mnist fsdp2 ddp"),
    (["--program", "gpt", "--rounds", "1", "--peers", "fsdp1", "--", "--data", "folder"],
     ["| perplexity, ours | 54.598 (54.598 to 54.598) |", "| losses, largest relative difference | 2.5e-01 |"],
     "gpt fsdp1"),
)
MISTAKES = (
    ("--sizes 9M,8M", "--sizes names '8M'"), ("--rounds 0", "--rounds is 0"),
    ("--precision bf16 --peers ddp", "--precision bf16 is for --peers fsdp2"),
    ("--program mnist", "add -- --data FOLDER"), ("-- --data x", "'--data' is for --program mnist or gpt"),
    ("--program gpt --pairs 2 -- --data x", "--pairs is for --program step"),
    ("--program overhead --sizes 9M,69M", "--sizes is for --program step"),
    ("--program gpt -- --data x --seed 2", "--seed is not allowed"),
    ("--program choices --peers ddp", "--peers is not for --program choices"),
    ("--picture x.png", "is for --program choices"),
    ("--peer /nowhere", "there is no script /nowhere"), ("--bench /bin/echo", "failed with status 0"),
)


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.programs = []
        for name in ("bench", "mnist", "gpt", "fsdprun", "torchrun", "peer", "plot"):
            (self.folder / name).write_text(PROGRAM, encoding="utf-8")
            (self.folder / name).chmod(0o700)
            self.programs.append(f"--{name}={self.folder / name}")

    def compare(self, words):
        return subprocess.run([sys.executable, "-B", COMPARE, *self.programs, *words], capture_output=True, text=True,
                              timeout=60, check=False, cwd=self.folder, env=os.environ)

    def test_prints_medians_and_ranges_as_markdown_and_takes_turns_at_going_first(self):
        for words, rows, order in RUNS:
            with self.subTest(words):
                done = self.compare(words)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                for row in rows:
                    self.assertIn(row, done.stdout.splitlines())
                runs = (self.folder / "log").read_text(encoding="utf-8").splitlines()
                self.assertEqual(" ".join(run.split()[0] for run in runs), order)
                for run in runs if "choices" not in words else ():  # choices sets the backends itself
                    self.assertEqual("--backend shm" in run, run.startswith("bench") and "shm" in words, run)
                (self.folder / "log").unlink()

    def test_mistakes_are_named(self):
        for words, expected in MISTAKES:
            done = self.compare(words.split())
            self.assertEqual(done.returncode, 1, words)
            self.assertIn(expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
