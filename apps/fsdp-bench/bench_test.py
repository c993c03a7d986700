"""Runs fsdp-bench with small sizes and checks what it prints.

    python3 bench_test.py FSDP_BENCH BACKEND
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import unittest

BENCH = BACKEND = ""
MODEL = "--dim 16 --layers 2 --heads 2 --batch 2 --seq 8 --vocab 32".split()
SMALL = [*MODEL, "--steps", "4"]
TIMEOUT = 120


def run(*words, environment=None):
    return subprocess.run([BENCH, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT, check=False,
                          env=os.environ | (environment or {}))


def output(*words):
    done = run(*words)
    if done.returncode != 0:
        raise AssertionError(f"fsdp-bench {words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def step(*words):
    return json.loads(output("step", *SMALL, "--backend", BACKEND, *words))


def versus(engine, *words):
    return json.loads(output("step", *MODEL, "--backend", BACKEND, "--versus", engine, *words))


class Step(unittest.TestCase):
    def test_observed_steps_are_compared_with_others(self):
        result = versus("fsdp", "--pairs", 5, "--observe")
        self.assertTrue(result["observed"])
        self.assertEqual(len(result["ratios"]), 5)

    def test_prints_one_line_of_json_with_every_key(self):
        printed = output("step", *SMALL, "--backend", BACKEND)
        self.assertEqual(len(printed.splitlines()), 1, printed)
        result = json.loads(printed)
        keys = {"engine", "world", "ms_per_step", "tokens_per_s", "pss_mb", "losses", "forward_ms", "backward_ms",
                "optimizer_ms", "bytes"}
        self.assertLessEqual(keys, result.keys())
        self.assertEqual(set(result["bytes"]), {"rows", "whole", "gradient", "optimizer", "activation"})
        self.assertEqual((result["engine"], result["world"], len(result["losses"])), ("fsdp", 2, 4))

    def test_losses_do_not_depend_on_resharding(self):
        for world in (1, 2):
            losses = [step("--world", world, "--reshard", reshard)["losses"]
                      for reshard in ("default", "always", "never")]
            self.assertEqual(losses[0], losses[1], f"world {world}")
            self.assertEqual(losses[0], losses[2], f"world {world}")

    def test_losses_do_not_depend_on_the_strategy(self):
        expected = step("--world", 2)["losses"]
        for words in (["shard_grad_op"], ["shard_optimizer"], ["replicate"], ["full_shard", "--mesh", "2x1"]):
            self.assertEqual(step("--world", 2, "--strategy", *words)["losses"], expected, words)

    def test_low_precision_has_nearby_losses_and_smaller_whole_parameters(self):
        expected = step("--world", 2)
        for precision in ("bf16", "fp16"):
            low = step("--world", 2, "--precision", precision)
            self.assertEqual(low["precision"], precision)
            self.assertNotEqual(low["losses"], expected["losses"])
            for ours, theirs in zip(low["losses"], expected["losses"], strict=True):
                self.assertAlmostEqual(ours, theirs, delta=0.01 * theirs)
            if BACKEND == "gloo":
                self.assertLess(low["bytes"]["whole"]["peak"], 0.6 * expected["bytes"]["whole"]["peak"])

    def test_activations_that_are_computed_again_change_no_loss_and_are_the_blocks_inputs(self):
        plain = step("--world", 2)
        for flag in ("--checkpoint-activations", "--keep-products"):
            again = step("--world", 2, flag)
            self.assertEqual(again["losses"], plain["losses"])
            self.assertGreater(again["bytes"]["activation"]["peak"], plain["bytes"]["activation"]["peak"])
            self.assertEqual(again["bytes"]["activation"]["current"], 0)

    def test_naive_data_parallelism_has_the_same_losses(self):
        for ours, expected in zip(step("--world", 2, "--engine", "naive")["losses"], step("--world", 2)["losses"]):
            self.assertAlmostEqual(ours, expected, delta=5e-6 * expected)

    def test_replicas_hold_everything(self):
        one, two = step("--world", 1)["bytes"], step("--world", 2, "--strategy", "replicate")["bytes"]
        for name in ("rows", "optimizer"):
            self.assertEqual(two[name]["current"], one[name]["current"], name)

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
        # Over shared memory whole parameters are there.
        least, most = (0, 0) if BACKEND == "shm" else (3, 5)
        result = step("--world", 2)
        self.assertTrue(least <= result["gathers_per_step"] <= most, result["gathers_per_step"])
        self.assertEqual(result["reductions_per_step"], 3)
        self.assertEqual(step("--world", 2, "--reshard", "never")["gathers_per_step"], least)


class Versus(unittest.TestCase):
    def test_none_prints_the_ratio_to_the_bound_of_each_pair(self):
        result = versus("none", "--pairs", 9)
        self.assertEqual((result["engine"], result["versus"], result["pairs"]), ("fsdp", "bound", 9))
        ratios = result["ratios"]
        self.assertEqual(len(ratios), 9)
        self.assertAlmostEqual(result["ratio"], statistics.median(ratios), delta=1e-4)
        low, high = result["ratio_95"]
        self.assertTrue(min(ratios) <= low <= result["ratio"] <= high <= max(ratios), result)

    def test_an_engine_of_ours_is_compared_step_with_step(self):
        result = versus("fsdp", "--pairs", 3)
        self.assertEqual((result["versus"], len(result["ratios"])), ("fsdp", 3))

    def test_strategies_are_compared_step_with_step(self):
        result = versus("fsdp", "--pairs", 3, "--strategy", "shard_optimizer", "--versus-strategy", "replicate")
        self.assertEqual((result["strategy"], result["versus_strategy"]), ("shard_optimizer", "replicate"))

    def test_says_nothing_of_memory_and_takes_sixty_pairs_by_default(self):
        result = versus("none", "--world", 1)
        self.assertEqual((result["pairs"], len(result["ratios"])), (60, 60))
        self.assertFalse({"pss_mb", "bytes"} & result.keys())


class Collectives(unittest.TestCase):
    NAMES = ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "send_recv"]

    def collectives(self, *words):
        return json.loads(output("collectives", "--backend", BACKEND, "--max-bytes", "64K", "--json", *words))

    def test_every_collective_has_every_size_and_a_barrier_none(self):
        for world, smallest in ((2, 1), (3, 7)):
            result = self.collectives("--world", world, "--min-bytes", 4 ** smallest)
            sizes = [4 ** exponent for exponent in range(smallest, 9)]
            expected = [(name, size) for name in self.NAMES for size in sizes] + [("barrier", 0)]
            self.assertEqual([(row["collective"], row["bytes"]) for row in result["rows"]], expected)
            self.assertEqual(result["backends"], list(dict.fromkeys([BACKEND, "gloo"])))
            self.assertEqual((result["world"], result["buffer_bytes"]), (world, 2 * 65536))

    def test_bandwidths_follow_from_times(self):
        shares = {"all_gather": 2 / 3, "reduce_scatter": 2 / 3, "all_reduce": 4 / 3, "broadcast": 1, "send_recv": 1}
        for row in self.collectives("--world", 3, "--min-bytes", "64K")["rows"]:
            if row["collective"] == "barrier":
                continue
            for backend in {BACKEND, "gloo"}:
                expected = 65536 * shares[row["collective"]] / row[backend]["us"] / 1e3
                self.assertAlmostEqual(row[backend]["bus_gb_per_s"], expected, delta=1e-5 + 1e-3 * expected)
            self.assertAlmostEqual(row["memcpy"]["gb_per_s"], 65.536 / row["memcpy"]["us"], delta=0.1)

    def test_prints_a_table_without_json(self):
        lines = output("collectives", "--backend", BACKEND, "--min-bytes", 16, "--max-bytes", 16).splitlines()
        heading = next(line.split() for line in lines if line.startswith("collective"))
        self.assertEqual(heading[:3], ["collective", "bytes", BACKEND])
        self.assertEqual([line.split()[0] for line in lines[lines.index("") + 2:]], [*self.NAMES, "barrier"])


class Deferred(unittest.TestCase):
    SHAPE = "--dim 768 --layers 12 --heads 12 --vocab 4096 --seq 64".split()
    RANK_MB = 110  # LibTorch's code as it is run, and what its allocator keeps

    def deferred(self, folder, *words):
        result = json.loads(output("deferred", folder, *self.SHAPE, "--backend", BACKEND, *words))
        taken = result["peak_pss_mb"] - result["pss_before_mb"]
        self.assertLess(taken, 1.25 * result["parameter_mb"] + self.RANK_MB * result["world"], result)
        self.assertGreater(taken, result["parameter_mb"], result)
        return result

    def test_a_model_is_built_saved_and_loaded_within_a_quarter_more_than_its_parameters(self):
        with tempfile.TemporaryDirectory() as folder:
            saved = self.deferred(folder, "--world", 2)
            for world in (1, 3):
                loaded = self.deferred(folder, "--world", world, "--load")
                self.assertEqual(loaded["parameters"], saved["parameters"])


class Offload(unittest.TestCase):
    def test_what_is_in_files_is_read_from_the_disk_and_written_to_it_in_a_step(self):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            result = json.loads(output("offload", *MODEL, "--dim", 128, "--backend", BACKEND, "--folder", folder, "--rounds", 1))
            self.assertEqual(os.listdir(folder), [])
        state_mb = result["parameters"] * 4 * 4 / 1e6  # rows, gradients, AdamW's two
        self.assertGreater(result["files_mb"], 0.99 * state_mb, result)
        self.assertGreater(result["written_mb"], 0.7 * state_mb, result)  # rows and AdamW's two
        self.assertGreater(result["from_disk_s"], 0, result)


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
        self.expect_failure(["step", "--backend", "pigeon"], "--backend")
        self.expect_failure(["step", "--versus", "other"], "--versus")
        self.expect_failure(["step", "--strategy", "other"], "--strategy")
        self.expect_failure(["step", "--precision", "fp8"], "--precision")
        self.expect_failure(["step", "--precision", "bf16", "--versus", "none"], "--precision: expected fp32 with")
        self.expect_failure(["step", "--versus", "none", "--versus-strategy", "replicate"],
                            "--versus-strategy: expected --versus fsdp")
        self.expect_failure(["step", "--mesh", "2by2"], "--mesh: expected numbers as in 8 or in 2x4, found '2by2'")
        self.expect_failure([], "subcommand")

    def test_steps_and_pairs_do_not_go_together(self):
        self.expect_failure(["step", "--pairs", 3], "--pairs requires --versus")
        self.expect_failure(["step", "--versus", "none", "--steps", 3], "excludes")
        self.expect_failure(["step", "--versus", "none", "--pairs", 0], "--pairs")

    def test_sizes_of_messages_are_whole_elements_in_order(self):
        self.expect_failure(["collectives", "--min-bytes", 6], "--min-bytes: expected a multiple of 4")
        self.expect_failure(["collectives", "--min-bytes", "64K", "--max-bytes", "1K"], "no more than --max-bytes")
        self.expect_failure(["collectives", "--max-bytes", 0], "--max-bytes")
        self.expect_failure(["collectives", "--world", 1], "--world")

    def test_another_number_of_ranks_than_the_launcher_started_is_refused(self):
        environment = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": "29500"}
        done = run("step", *SMALL, "--world", 2, environment=environment)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "--world is 2, but this is one of 1 ranks")


class Intercept(unittest.TestCase):
    def test_prints_the_cost_of_an_operator(self):
        done = run("intercept", "--rounds", 3, "--operators", 50)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(len(result["operators"]), 8)
        self.assertIn("overhead_us", result)


class Optim(unittest.TestCase):
    def test_every_optimizer_ends_where_torchs_does(self):
        for words in ([], ["--param-dtype", "bf16"]):
            done = run("optim", "--tensors", 4, "--numel", 5000, "--rounds", 3, *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(done.stdout)
            self.assertEqual([one["optimizer"] for one in result["optimizers"]],
                             ["adamw", "adam", "sgd", "rmsprop", "adagrad"])
            for one in result["optimizers"]:
                self.assertLess(one["largest_difference"], 1e-6 if not words else 1e-3, one)  # bf16 gradients differ
                self.assertLessEqual({"torch_ms", "ms", "ratio", "gb_per_s"}, one.keys())
            self.assertEqual(set(result["memory_gb_per_s"]), {"copy", "triad"})


class Checkpoint(unittest.TestCase):
    def test_prints_saving_and_loading_beside_plain_files_and_leaves_none(self):
        with tempfile.TemporaryDirectory() as folder:
            words = ["checkpoint", *MODEL, "--backend", BACKEND, "--rounds", 1, "--folder", folder]
            result = json.loads(output(*words, "--json"))
            self.assertEqual((result["world"], result["rounds"]), (2, 1))
            for name in ("plain_write", "save", "plain_read", "load"):
                self.assertAlmostEqual(result[name]["mb_per_s"] * result[name]["seconds"], result["megabytes"],
                                       delta=0.1 + 0.05 * result["megabytes"])
            self.assertEqual(result["save"]["of_plain_range"], 2 * [result["save"]["of_plain"]])
            for name in ("async_begin", "step", "step_while_saving"):
                self.assertGreater(result[name]["seconds"], 0)
            self.assertGreater(result["step_while_saving"]["more"], -1)
            self.assertEqual(os.listdir(folder), [])

    def test_a_folder_in_use_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "fsdp-bench-checkpoint"))
            done = run("checkpoint", *MODEL, "--backend", BACKEND, "--world", 1, "--folder", folder)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, "fsdp-bench-checkpoint is there. Another run uses it")


class Scaling(unittest.TestCase):
    def test_every_kind_of_unit_has_every_size_and_every_cost(self):
        result = json.loads(output("scaling", "--backend", BACKEND, "--largest", 100, "--json"))
        expected = [(of, units) for of in ("groups", "nesting", "parameters") for units in (10, 100)]
        self.assertEqual([(row["of"], row["units"]) for row in result["rows"]], expected)
        self.assertEqual((result["world"], result["backend"]), (2, BACKEND))
        for row in result["rows"]:
            for cost in ("shard", "step", "unsharded", "optimizer", "opt. unsharded"):
                self.assertGreater(row[cost]["us_per_unit"], 0)
                self.assertGreater(row[cost]["growth"], 0)
                if row["units"] == 10:
                    self.assertEqual(row[cost]["growth"], 1, row)

    def test_prints_a_table_of_one_kind_without_json(self):
        lines = output("scaling", "--backend", BACKEND, "--of", "nesting", "--largest", 10).splitlines()
        self.assertEqual([line.split()[:2] for line in lines[-2:]], [["of", "units"], ["nesting", "10"]])


if __name__ == "__main__":
    BENCH, BACKEND = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
