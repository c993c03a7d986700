"""Runs fsdp-bench with small sizes and checks what it prints.

    python3 bench_test.py FSDP_BENCH
"""

import json
import subprocess
import sys
import unittest

BENCH = ""
SMALL = "--dim 16 --layers 2 --heads 2 --batch 2 --seq 8 --vocab 32 --steps 4".split()
TIMEOUT = 120


def run(*words):
    return subprocess.run([BENCH, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT, check=False)


def step(*words):
    done = run("step", *SMALL, *words)
    if done.returncode != 0:
        raise AssertionError(f"fsdp-bench step {words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


class Step(unittest.TestCase):
    def test_prints_one_line_of_json_with_every_key(self):
        done = run("step", *SMALL)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 1, done.stdout)
        result = json.loads(done.stdout)
        keys = {"engine", "world", "ms_per_step", "tokens_per_s", "pss_mb", "losses", "forward_ms", "backward_ms",
                "optimizer_ms", "bytes"}
        self.assertLessEqual(keys, result.keys())
        self.assertEqual(set(result["bytes"]), {"rows", "whole", "gradient", "optimizer"})
        self.assertEqual((result["engine"], result["world"], len(result["losses"])), ("fsdp", 2, 4))

    def test_losses_do_not_depend_on_resharding(self):
        for world in (1, 2):
            losses = [step("--world", world, "--reshard", reshard)["losses"]
                      for reshard in ("default", "always", "never")]
            self.assertEqual(losses[0], losses[1], f"world {world}")
            self.assertEqual(losses[0], losses[2], f"world {world}")

    def test_sharded_losses_equal_unsharded_ones_of_the_joined_batch(self):
        unsharded = step("--world", 1, "--engine", "none", "--batch", 4)["losses"]
        for world, batch in ((1, 4), (2, 2)):
            sharded = step("--world", world, "--batch", batch)["losses"]
            for ours, expected in zip(sharded, unsharded):
                self.assertAlmostEqual(ours, expected, delta=5e-6 * expected, msg=f"world {world}")

    def test_each_of_two_ranks_holds_half_of_the_training_state(self):
        one = step("--world", 1)["bytes"]
        two = step("--world", 2)["bytes"]
        for name in ("rows", "optimizer"):
            ratio = two[name]["current"] / one[name]["current"]
            self.assertTrue(0.45 <= ratio <= 0.6, f"{name}: {ratio}")

    def test_gathers_and_reductions_per_step_are_those_of_the_schedule(self):
        # Two blocks and a root: forward gathers all, backward all but the root, which forward left whole, at most.
        result = step("--world", 2)
        self.assertTrue(3 <= result["gathers_per_step"] <= 5, result["gathers_per_step"])
        self.assertEqual(result["reductions_per_step"], 3)
        self.assertEqual(step("--world", 2, "--reshard", "never")["gathers_per_step"], 3)


class BadInput(unittest.TestCase):
    def expect_failure(self, words, pattern):
        done = run(*words)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout + done.stderr, pattern)

    def test_sizes_that_do_not_fit_are_named(self):
        self.expect_failure(["step", *SMALL, "--world", 1, "--heads", 3], "heads")

    def test_flags_with_wrong_values_are_named(self):
        self.expect_failure(["step", "--engine", "other"], "--engine")
        self.expect_failure(["step", "--steps", 2], "--steps")
        self.expect_failure([], "subcommand")


class Intercept(unittest.TestCase):
    def test_prints_the_cost_of_an_operator(self):
        done = run("intercept", "--rounds", 3, "--operators", 50)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(len(result["operators"]), 4)
        self.assertIn("overhead_us", result)


if __name__ == "__main__":
    BENCH = sys.argv.pop(1)
    unittest.main()
