"""Runs compare --program mnist and gpt with programs that print known figures.

    python3 compare_trainings_test.py
"""

import unittest

from compare_case import CompareCase

# What is said of a run goes to a log, first the name.
LOG = """
    import json, pathlib, sys
    def log(name):
        with pathlib.Path(__file__).with_name("log").open("a", encoding="utf-8") as file:
            print(name, *sys.argv[1:], file=file)
"""
FSDPRUN = """
    #!/usr/bin/env bash
    [[ "$1 $2 $3" == "--no-prefix --nproc_per_node 2" ]] && exec "${@:4}"
"""
# The seed of a round is its number, from 1 on.
MNIST = """
    #!/usr/bin/env python3
    LOG
    log("ours")
    seed = int(sys.argv[sys.argv.index("--seed") + 1])
    print("Train Epoch: 1  Loss: 0.250000")
    print("Test set: Average loss: 0.0600, Accuracy: 97/100 (97.00%)")
    print("Train Epoch: 2  Loss: LAST")
    print(f"Test set: Average loss: 0.0500, Accuracy: 9{6 + seed}/100 (9{6 + seed}.00%)")
    print(f"Elapsed: {2 * seed}.00 s")
"""
GPT = """
    #!/usr/bin/env python3
    LOG
    log("ours")
    print("step 4: validation loss 5.0000 nats per word, perplexity 148.41")
    print("step 8: validation loss LAST nats per word, perplexity 54.60")
    print("1000 words in 3 s, 250 words/s on 2 ranks; validation loss 4.00001 nats per word, perplexity 54.5982")
"""
TORCHRUN = """
    #!/usr/bin/env python3
    LOG
    engine = sys.argv[sys.argv.index("--engine") + 1]
    log(engine)
    print(json.dumps(dict(seconds=8 if engine == "fsdp2" else 2, whole_seconds=1, peak_rss_mb=[1, 1], accuracy=96.5,
                          perplexity=55.0, losses=[0.25, 0.125], validation_losses=[5.0, 4.0])))
"""
DATA = "--", "--data", "folder"


class CompareTrainings(CompareCase):
    def compare(self, *words, last_mnist="0.125000", last_gpt="4.0000"):
        programs = {"mnist": MNIST.replace("LAST", last_mnist), "gpt": GPT.replace("LAST", last_gpt),
                    "fsdprun": FSDPRUN, "torchrun": TORCHRUN, "peer": ""}
        for name, text in programs.items():
            self.write(name, text.replace("    LOG\n", LOG.lstrip("\n")))
        return self.run_compare(programs, words)

    def test_prints_speeds_accuracies_and_losses_of_mnist_as_markdown(self):
        lines = self.lines("--program", "mnist", *DATA)
        for row in ("| figure | mnist |",
                    "| speed, training, ours : torch-fsdp2 | 2.000 (1.333 to 4.000) |",
                    "| speed, training, ours : torch-ddp | 0.500 (0.333 to 1.000) |",
                    "| accuracy, ours | 98.000 (97.000 to 99.000) |",
                    "| accuracy, torch-ddp | 96.500 (96.500 to 96.500) |",
                    "| losses, largest relative difference | 0.0e+00 |"):
            self.assertIn(row, lines)
        for figure in "speed, whole", "RSS of the largest process at its peak":
            self.assertTrue(any(line.startswith(f"| {figure}, ours : torch-fsdp2 | ") for line in lines), lines)

    def test_prints_speeds_and_perplexities_of_gpt(self):
        lines = self.lines("--program", "gpt", "--rounds", 1, *DATA)
        for row in ("| speed, training, ours : torch-fsdp2 | 2.000 (2.000 to 2.000) |",
                    "| perplexity, ours | 54.598 (54.598 to 54.598) |",
                    "| losses, largest relative difference | 0.0e+00 |"):
            self.assertIn(row, lines)
        # Ours also trains an unsharded model, which would count.
        self.assertFalse([line for line in lines if "RSS" in line])

    def test_tells_how_far_losses_differ_and_stops_where_they_are_no_numbers(self):
        words = "--rounds", 1, *DATA
        self.assertIn("| losses, largest relative difference | 1.0e+00 |",
                      self.lines("--program", "mnist", *words, last_mnist="0.250000"))
        self.assertIn("| losses, largest relative difference | 2.5e-01 |",
                      self.lines("--program", "gpt", *words, last_gpt="5.0000"))
        done = self.compare("--program", "mnist", *words, last_mnist="-nan")
        self.assertEqual(done.returncode, 1)
        self.assertIn("losses are not finite", done.stderr)

    def test_all_get_the_same_flags_and_the_seed_of_their_round(self):
        self.lines("--program", "mnist", "--rounds", 2, *DATA, "--epochs", 3)
        self.assertEqual([run.split()[0] for run in self.runs()], ["ours", "fsdp2", "ddp", "fsdp2", "ddp", "ours"])
        for number, run in enumerate(self.runs()):
            self.assertTrue(run.endswith(f"--data folder --epochs 3 --no-cuda --seed {1 + number // 3}"), run)

    def test_the_strategy_is_for_ours_only(self):
        self.lines("--program", "mnist", "--rounds", 1, "--strategy", "replicate", *DATA)
        self.assertEqual([(run.split()[0], "--strategy replicate" in run) for run in self.runs()],
                         [("ours", True), ("fsdp2", False), ("ddp", False)])

    def test_our_gpt_writes_no_sample(self):
        self.lines("--program", "gpt", "--rounds", 1, "--peers", "fsdp1", *DATA)
        self.assertEqual([(run.split()[0], "--sample 0" in run) for run in self.runs()],
                         [("ours", True), ("fsdp1", False)])

    def test_output_without_a_result_is_an_error(self):
        done = self.compare("--program", "gpt", "--gpt", "/bin/echo", *DATA)
        self.assertEqual(done.returncode, 1)
        self.assertIn("failed with status 0", done.stderr)

    def test_wrong_arguments_are_named(self):
        for words, expected in ((("--program", "mnist"), "add -- --data FOLDER"),
                                (("--program", "gpt", "--pairs", 2, *DATA), "--pairs is for --program step"),
                                (("--program", "gpt", *DATA, "--seed", 2), "--seed is a round's own"),
                                (("--", "--data", "x"), "'--data' is for --program mnist or gpt"),
                                (("--program", "mnist", "--mnist", "/nowhere", *DATA), "/nowhere is not there"),
                                (("--program", "pigeon"), "--program")):
            done = self.compare(*words)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
