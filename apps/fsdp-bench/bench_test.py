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
MODEL = "--dim 16 --layers 2 --heads 2 --batch 2 --seq 8 --vocab 32"
# Each entry has flags of a step, and how much the losses may differ from those of two ranks that shard everything.
LOSSES = (
    ("--reshard always", 0), ("--reshard never", 0), ("--strategy shard_grad_op", 0), ("--strategy shard_optimizer", 0),
    ("--strategy replicate", 0), ("--strategy full_shard --mesh 2x1", 0), ("--checkpoint-activations", 0),
    ("--keep-products", 0), ("--engine naive", 5e-6), ("--world 1 --batch 4", 5e-6),
    ("--world 1 --batch 4 --engine none", 5e-6), ("--precision bf16", 0.01), ("--precision fp16", 0.01),
    ("--pipe 2 --batch 4 --micro-batches 3", 5e-6), ("--world 4 --pipe 2 --micro-batches 2 --schedule gpipe", 5e-6),
)
MISTAKES = (
    ("", "subcommand"), ("step --world 1 --heads 3", "heads"), ("step --engine other", "--engine"),
    ("step --steps 2", "--steps"), ("step --backend pigeon", "--backend"), ("step --versus other", "--versus"),
    ("step --strategy other", "--strategy"), ("step --precision fp8", "--precision"),
    ("step --precision bf16 --versus none", "--precision: expected fp32 with"),
    ("step --versus none --versus-strategy replicate", "--versus-strategy: expected --versus fsdp"),
    ("step --mesh 2by2", "--mesh: expected sizes such as 8 or 2x4, found '2by2'"),
    ("step --pipe 2 --versus none", "excludes"), ("step --pipe 2 --engine none", "--pipe: expected --engine fsdp"),
    ("step --chunks 2", "--chunks requires --pipe"), ("step --pipe 2 --mesh 2", "excludes"),
    ("step --pipe 2 --layers 1", "expected at least one block for each of the 2 stages of the pipeline, found 1"),
    ("step --pairs 3", "--pairs requires --versus"), ("step --versus none --steps 3", "excludes"),
    ("step --versus none --pairs 0", "--pairs"), ("collectives --world 1", "--world"),
    ("attention --heads 3", "--heads to be a multiple of --world"),
    ("collectives --min-bytes 6", "--min-bytes: expected a multiple of 4"),
    ("scale --real --ranks 2", "--transport: expected gloo, hierarchical or shm with --real"),
    ("collectives --min-bytes 64K --max-bytes 1K", "no more than --max-bytes"),
    ("schedule --schedule terapipe", "at least 1 for 'slices', found 0"), ("schedule --rounds 2", "requires --measure"),
)


def run(words, **environment):
    return subprocess.run([BENCH, *words.split()], capture_output=True, text=True, timeout=120, check=False,
                          env=os.environ | environment)


def output(words):
    done = run(words)
    if done.returncode != 0:
        raise AssertionError(f"fsdp-bench {words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def result(words):
    """Returns the output of a command that prints one line of JSON, run over BACKEND."""
    return json.loads(output(f"{words} --backend {BACKEND}"))


def step(words=""):
    return result(f"step {MODEL} --steps 4 {words}")


class Step(unittest.TestCase):
    def test_losses_are_those_of_the_unsharded_model_with_all_flags(self):
        plain = step()
        self.assertEqual((plain["engine"], plain["world"], len(plain["losses"])), ("fsdp", 2, 4))
        self.assertEqual(set(plain["bytes"]), {"rows", "whole", "gradient", "optimizer", "activation"})
        for words, tolerance in LOSSES:
            with self.subTest(words):
                for found, expected in zip(step(words)["losses"], plain["losses"], strict=True):
                    self.assertAlmostEqual(found, expected, delta=tolerance * expected)

    def test_each_of_two_ranks_holds_half_of_the_training_state_or_all_of_it_as_a_replica(self):
        one, two, replica = (step(words)["bytes"] for words in ("--world 1", "", "--strategy replicate"))
        for name in ("rows", "optimizer"):
            ratio = two[name]["current"] / one[name]["current"]
            self.assertTrue(0.45 <= ratio <= 0.6, f"{name}: {ratio}")
            self.assertEqual(replica[name]["current"], one[name]["current"], name)

    def test_gathers_and_reductions_are_those_of_the_schedule(self):
        # The model has two blocks and a root group. Forward gathers all three groups, and backward at most the two
        # blocks again, because the root group stays whole. Over shared memory nothing is gathered.
        least, most = (0, 0) if BACKEND == "shm" else (3, 5)
        plain = step()
        self.assertTrue(least <= plain["gathers_per_step"] <= most, plain["gathers_per_step"])
        self.assertEqual(plain["reductions_per_step"], 3)
        self.assertEqual(step("--reshard never")["gathers_per_step"], least)

    def test_stages_send_each_other_activations_and_gradients_alone(self):
        found = step("--pipe 2 --batch 4 --micro-batches 2 --dim 64 --seq 64")["rank_0_mb_per_step"]["inside_host"]
        activations = 4 * 64 * 64 * 4 / 1e6
        self.assertAlmostEqual(found["sent"], activations, delta=0.001)
        self.assertAlmostEqual(found["received"], activations, delta=0.001)

    def test_steps_are_compared_in_pairs(self):
        for words, key, expected in (("none", "versus", "bound"), ("fsdp --observe", "observed", True),
                                     ("fsdp --versus-strategy replicate", "versus_strategy", "replicate")):
            pairs = result(f"step {MODEL} --pairs 5 --versus {words}")
            self.assertEqual((pairs[key], len(pairs["ratios"])), (expected, 5))
            low, high = pairs["ratio_95"]
            self.assertTrue(min(pairs["ratios"]) <= low <= pairs["ratio"] <= high <= max(pairs["ratios"]), pairs)
            self.assertAlmostEqual(pairs["ratio"], statistics.median(pairs["ratios"]), delta=1e-4)


class OtherCommands(unittest.TestCase):
    def test_collectives_have_each_size_and_bandwidths_of_the_bytes_that_a_rank_sends(self):
        shares = {"all_gather": 2 / 3, "reduce_scatter": 2 / 3, "all_reduce": 4 / 3, "all_to_all": 2 / 3,
                  "broadcast": 1, "send_recv": 1}
        rows = result("collectives --world 3 --min-bytes 16K --max-bytes 64K --json")["rows"]
        self.assertEqual([(row["collective"], row["bytes"]) for row in rows],
                         [(name, size) for name in shares for size in (16384, 65536)] + [("barrier", 0)])
        for row in rows[:-1]:
            expected = row["bytes"] * shares[row["collective"]] / row[BACKEND]["us"] / 1e3
            self.assertAlmostEqual(row[BACKEND]["bus_gb_per_s"], expected, delta=1e-5 + 1e-3 * expected)
        self.assertIn("\ncollective", output(f"collectives --backend {BACKEND} --min-bytes 16 --max-bytes 16"))

    def test_a_deferred_model_is_built_saved_and_loaded_within_a_quarter_more_than_its_parameters(self):
        with tempfile.TemporaryDirectory() as folder:
            for words in ("--world 2", "--world 3 --load"):
                found = result(f"deferred {folder} --dim 768 --layers 12 --heads 12 --vocab 4096 --seq 64 {words}")
                taken = found["peak_pss_mb"] - found["pss_before_mb"]
                # Each rank also has 110 MB for LibTorch's code that it runs and for memory that its allocator keeps.
                self.assertLess(taken, 1.25 * found["parameter_mb"] + 110 * found["world"], found)
                self.assertGreater(taken, found["parameter_mb"], found)

    def test_offloading_to_files_reads_and_writes_them(self):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            found = result(f"offload {MODEL} --dim 128 --folder {folder} --rounds 1")
            self.assertEqual(os.listdir(folder), [])
        state_mb = found["parameters"] * 4 * 4 / 1e6  # The state has rows, gradients and two values of AdamW.
        self.assertGreater(found["files_mb"], 0.99 * state_mb, found)
        self.assertGreater(found["written_mb"], 0.7 * state_mb, found)  # A step writes rows and AdamW's two values.

    def test_every_optimizer_ends_where_torchs_does(self):
        for words, tolerance in (("", 1e-6), ("--param-dtype bf16", 1e-3)):  # bf16 gradients differ.
            for one in json.loads(output(f"optim --tensors 4 --numel 5000 --rounds 3 {words}"))["optimizers"]:
                self.assertLess(one["largest_difference"], tolerance, one)

    def test_checkpoints_are_compared_with_plain_files_and_leave_none(self):
        with tempfile.TemporaryDirectory() as folder:
            words = f"checkpoint {MODEL} --rounds 1 --folder {folder}"
            found = result(f"{words} --json")
            for name in ("plain_write", "save", "plain_read", "load"):
                self.assertAlmostEqual(found[name]["mb_per_s"] * found[name]["seconds"], found["megabytes"],
                                       delta=0.1 + 0.05 * found["megabytes"])
            self.assertEqual(os.listdir(folder), [])
            os.mkdir(os.path.join(folder, "fsdp-bench-checkpoint"))
            self.assertIn("fsdp-bench-checkpoint already exists. If no other run is using", run(words).stderr)

    def test_costs_of_units_and_operators_are_counted(self):
        rows = result("scaling --largest 100 --json")["rows"]
        self.assertEqual([(row["of"], row["units"]) for row in rows],
                         [(of, units) for of in ("groups", "nesting", "parameters") for units in (10, 100)])
        rows = result("overhead --groups 3,5 --steps 4 --json")["rows"]
        self.assertEqual([row["groups"] for row in rows], [3, 5])
        for row in rows:
            for model in ("sharded", "plain"):
                low, high = row[model]["step"]["quartiles"]
                self.assertTrue(0 < low <= row[model]["step"]["median"] <= high, row)
                self.assertLess(0, min(row[model][part]["median"] for part in ("forward", "backward", "optimizer")))
        self.assertIn("\n3       plain ", output(f"overhead --groups 3 --steps 1 --world 1 --backend {BACKEND}"))
        held = [result(f"activations --world {n} --length {64 * n} --dim 16 --heads 2 --split {split}")["peak_bytes"]
                for n, split in ((1, "ring"), (2, "ring"), (2, "tensor"))]
        self.assertLess(held[1], 1.3 * held[0])
        self.assertLess(held[1], held[2])
        methods = result("attention --length 32 --heads 4 --head-size 4 --rounds 2 --json")["methods"]
        self.assertEqual([method["method"] for method in methods], ["alone", "head-tail", "ring", "gather", "heads"])
        self.assertEqual(methods[0]["ratio"], 1)
        self.assertLess(0, min(method["ratio"] for method in methods))
        self.assertEqual(len(json.loads(output("intercept --rounds 3 --operators 50"))["operators"]), 8)


    def test_schedules_are_timed_and_printed(self):
        found = json.loads(output("schedule --schedule interleaved --ranks 4 --micro-batches 8 --json"))
        self.assertEqual((found["name"], found["total"]), ("interleaved 1F1B", 3 * (2 * 8 + 3) / 2))
        self.assertAlmostEqual(found["bubble"], 3 / (2 * 8 + 3))
        self.assertEqual([len(rank) for rank in found["ranks"]], 4 * [2 * 2 * 8])
        text = output("schedule --schedule terapipe --ranks 2 --micro-batches 1 --slices 2,1")
        self.assertIn("rank 1: .      F0.1   F0.1:1", text)

    def test_a_step_of_stages_that_sleep_takes_at_least_the_time_of_the_formula(self):
        for words, micro_batches in (("gpipe", 3), ("1f1b", 3), ("interleaved", 2.5), ("terapipe --slices 3,1", 2.75)):
            found = json.loads(output(f"schedule --schedule {words} --ranks 2 --micro-batches 2 --measure 2 --rounds 1 "
                                      "--json"))
            self.assertAlmostEqual(found["formula_s"], micro_batches * 0.006)
            self.assertGreater(found["ratio"], 0.999, words)

    def test_real_ranks_count_what_the_simulation_of_them_does(self):
        found = output(f"scale --real --ranks 4 --transport {BACKEND}")
        self.assertEqual([line.split(",")[0] for line in found.splitlines()],
                         [f"rank {rank} of 4" for replicas in (1, 2) for rank in range(4)])

    def test_ranks_of_a_large_job_send_no_headers_and_call_the_store_for_each_64_operations(self):
        rows = [line.split() for line in output("scale --ranks 8,64").splitlines()[1:]]
        self.assertEqual([row[2:4] for row in rows], 2 * [["8", "8"], ["64", "64"], ["8", "2x4"], ["64", "8x8"]])
        for row in rows:
            headers, calls, _goal, operations, joining = map(int, row[4:9])
            self.assertEqual(headers, 0)
            self.assertLessEqual(calls, 2 * (operations // 64 + 4))  # Each of four queues may end a window.
            self.assertLessEqual(joining, 8)


class BadInput(unittest.TestCase):
    def test_mistakes_are_named(self):
        for words, expected in MISTAKES:
            done = run(words)
            self.assertNotEqual(done.returncode, 0, words)
            self.assertIn(expected, done.stdout + done.stderr)

    def test_another_number_of_ranks_than_the_launcher_started_is_refused(self):
        done = run("step --world 2", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                   MASTER_PORT="29500")
        self.assertEqual((done.returncode, "--world is 2, but this is one of 1 ranks" in done.stderr), (1, True), done)


if __name__ == "__main__":
    BENCH, BACKEND = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
