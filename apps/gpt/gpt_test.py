"""Trains small models, alone and as two ranks, and checks what gpt prints.

    python3 gpt_test.py GPT FSDPRUN
"""

import concurrent.futures
import json
import math
import pathlib
import re
import shutil
import struct
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
        small = [word for word in SMALL if "--epochs" not in words or word not in ("--steps", "4")]
        command = [*launcher, GPT, "--text", str(self.text), *small, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT,
                              check=False)  # a model may write bytes that are not UTF-8

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

    def test_writes_a_trace_of_all_ranks_and_the_metrics_of_each_step(self):
        folder = self.text.parent
        trace, metrics = folder / "trace.json", folder / "metrics.jsonl"
        output = self.train("--batch", 2, "--explain", "--trace", trace, "--profile", "--metrics", metrics,
                            "--tensorboard", folder / "events", "--peak-flops", "1e12", world=2)
        self.assertRegex(output, r"2 ranks, 2 share out")
        self.assertRegex(output, r"blocks\.1 +\d+ .*kFullShard\n")
        self.assertRegex(output, r"a step moves at most: ")
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        for rank in (0, 1):
            names = {event["name"] for event in events if event["pid"] == rank}
            self.assertLessEqual({"reduce_scatter blocks.0", "reduce blocks.1", "aten::mm"}, names)
            steps = [event for event in events if event["pid"] == rank and event["name"].startswith("optimizer step")]
            self.assertEqual(len(steps), 4)
            own = [event for event in events if event["pid"] == rank]
            passes = [event for event in own if event["name"].split()[0] in ("forward", "backward")]
            for product in (event for event in own if event["name"] == "aten::mm"):  # by the same clock
                self.assertTrue(any(one["ts"] <= product["ts"] <= one["ts"] + one["dur"] for one in passes), product)
        lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        trained = [line for line in lines if "loss" in line]
        self.assertEqual([line["step"] for line in trained], [1, 2, 3, 4])
        self.assertEqual([line["step"] for line in lines if "validation_loss" in line], [2, 4])
        shown = re.findall(r"step \d+/4 +loss (\d+\.\d+)", output)
        self.assertEqual([f"{line['loss']:.3f}" for line in trained], shown)
        for line in trained:
            self.assertLess(0, line["mfu"])
            self.assertLess(0, line["characters_per_second"])
            self.assertLess(0, line["peak_bytes/rows"])
        self.assertEqual(len(list((folder / "events").iterdir())), 1)

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
        self.assert_alike(two, one)

    def test_strategies_train_to_the_same_losses(self):
        expected, *others = (re.findall(r"step \d+/4 +loss (\d+\.\d+)", self.train("--batch", 2, *words, world=2))
                             for words in ([], ["--strategy", "shard_grad_op"], ["--strategy", "replicate"],
                                           ["--strategy", "shard_optimizer", "--mesh", "1x2"]))
        self.assertEqual(len(expected), 4)
        for found in others:
            self.assertEqual(found, expected)

    def test_fairseqs_flags_are_taken(self):
        losses = [re.findall(r"step \d+/4 +loss (\d+\.\d+)", self.train("--batch", 2, *words, world=2))
                  for words in ([], "--ddp-backend fully_sharded --optimizer adamw --update-freq 1".split())]
        self.assertEqual(len(losses[0]), 4)
        self.assertEqual(losses[1], losses[0])

    def test_low_precision_trains_to_nearby_losses(self):
        def losses(*words):
            output = self.train("--batch", 2, "--steps", 6, *words, world=2)
            return [float(loss) for loss in re.findall(r"step \d+/6 +loss (\d+\.\d+)", output)]

        small_llama = ["--size", "llama", "--lr", 0.001]
        for model in ([], small_llama):
            expected = losses(*model)
            for words in (["--bf16"], ["--fp16"], ["--autocast"], ["--fp16", "--autocast"]):
                with self.subTest(model + words):
                    found = losses(*model, *words)
                    if "--fp16" not in words:  # which differs in digits that are not printed
                        self.assertNotEqual(found, expected)
                    for ours, theirs in zip(found, expected, strict=True):
                        self.assertAlmostEqual(ours, theirs, delta=0.05 * theirs)

    def test_activations_that_are_computed_again_change_no_loss(self):
        def losses(*words):
            return re.findall(r"loss (\d+\.\d+)", self.train("--batch", 2, *words))

        for more in ([], ["--dropout", "0.3"]):
            expected = losses(*more)
            self.assertGreater(len(expected), 4)
            for flag in ("--checkpoint-activations", "--offload-activations"):
                self.assertEqual(losses(flag, *more), expected)

    def test_trains_alone_on_the_text_it_carries(self):
        command = [GPT, *SMALL, "--seq", "64", "--batch", "64", "--eval-every", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"tok: .*\n +weight \[65, 16\]")

    def test_micro_batches_train_as_one_batch(self):
        def losses(*words):
            output = self.train("--steps", 6, "--lr", 0.02, *words)
            return [float(loss) for loss in re.findall(r"step \d+/6 +loss (\d+\.\d+)", output)]

        self.assert_alike(losses("--batch", 2, "--update-freq", 2), losses("--batch", 4))

    def test_epochs_decide_on_the_steps(self):
        output = self.train("--epochs", 2, "--batch_size", 4, "--update-freq", 2, "--eval-every", 0, world=2)
        tokens = len(TEXT) * 9 // 10
        steps = (tokens - 1) // 16 // 16  # 16 tokens in a sequence, 2 ranks * 2 micro-batches * 4 sequences in a step
        self.assertRegex(output, rf"step {2 * steps}/{2 * steps} ")
        self.assertRegex(output, rf"epoch 1, step {steps}: validation loss \d\.\d+ nats per character, perplexity \d")
        self.assertRegex(output, rf"epoch 2, step {2 * steps}: validation loss")

    def test_two_ranks_see_the_same_epochs_as_one(self):
        def losses(batch, world):
            output = self.train("--epochs", 1, "--batch", batch, world=world)
            return [float(loss) for loss in re.findall(r"step \d+/\d+ +loss (\d+\.\d+)", output)]

        self.assert_alike(losses(4, 2), losses(8, 1))

    def assert_alike(self, found, expected):
        self.assertGreater(len(expected), 3)
        for ours, theirs in zip(found, expected, strict=True):
            self.assertAlmostEqual(ours, theirs, delta=0.0011)  # three digits are printed

    def test_trains_a_llama_on_words_with_dropout_and_a_prompt(self):
        output = self.train("--size", "llama", "--tokenizer", "words", "--dropout", 0.1, "--prompt", "12 bottles of",
                            "--top-k", 1, "--temperature", 1e-300, "--batch", 1, "--no-reshard-after-forward", world=2)
        self.assertRegex(output, r"RMSNorm|norm1")
        self.assertRegex(output, r"a vocabulary of \d+; validation perplexity per word by counting: unigram \d+\.\d+, "
                                 r"Kneser-Ney 3-gram \d+\.\d+")
        self.assertRegex(output, r"sample:\n\[rank 0\] 12 bottles of ")
        self.assertRegex(output, r"nats per word, perplexity \d")

    def test_trains_on_a_folder_with_tokens_of_its_own(self):
        self.text.unlink()
        self.text.mkdir()
        (self.text / "train.txt").write_text(TEXT, encoding="utf-8")
        (self.text / "valid.txt").write_text(TEXT[:600], encoding="utf-8")
        merges = self.text / "vocab.bpe"
        merges.write_text("#version: 0.2\no t\nĠ b\n", encoding="utf-8")
        output = self.train("--tokenizer", "gpt2", "--merges", merges, "--batch", 2)
        self.assertRegex(output, r"a vocabulary of 259; .* per token")

        done = self.run_gpt("--vocab_size", 292, "--batch", 2, world=2)
        if "built without SentencePiece" in done.stderr:
            self.skipTest("gpt was built without SentencePiece")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"a vocabulary of 292; .* per token")

    def test_takes_flags_from_a_file_and_prefers_its_own(self):
        config = self.text.with_name("config")
        config.write_text("batch_size = 2\nsize = llama\nsteps = 3\n", encoding="utf-8")
        command = [GPT, "--text", str(self.text), "--config", str(config), *SMALL[:8], "--steps", "2", "--sample", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("norm1", done.stdout)
        self.assertRegex(done.stdout, r"step 2/2 .*")
        self.assertIn("64 characters in", done.stdout)  # 2 steps of 2 sequences of 16

    def test_every_optimizer_trains_and_resumes(self):
        for optimizer, lr in (("adam", 0.01), ("cpu_adam", 0.01), ("sgd", 0.1), ("rmsprop", 0.003), ("adagrad", 0.05),
                              ("adadelta", 1)):
            with self.subTest(optimizer):
                folder = self.text.with_name(optimizer)
                words = ["--optimizer", optimizer, "--lr", lr, "--batch", 2, "--sample", 0, "--save", folder]
                output = self.train(*words, "--steps", 20, world=2)
                losses = [float(loss) for loss in re.findall(r"step \d+/20 +loss (\d+\.\d+)", output)]
                self.assertLess(losses[-1], losses[0], output)
                self.assertIn("goes on after step 20", self.train(*words, "--steps", 22, "--resume", folder, world=2))

    def test_resumes_bit_for_bit_with_the_same_ranks(self):
        words = ["--batch", 2, "--dropout", 0.2, "--sample", 0, "--eval-every", 0]
        for number, (world, more) in enumerate([(1, ["--epochs", 1]), (2, ["--steps", 4]), (2, ["--steps", 4, "--fp16"])]):
            runs = [self.text.with_name(f"{name}{number}") for name in ("whole", "half")]
            output = self.train(*words, *more, "--save", runs[0], "--save-every", 2, "--keep", 100, world=world)
            first, *_, last = sorted(path.name for path in runs[0].glob("step-*"))
            self.assertIn(f"step 2: saved in {runs[0]}", output)
            output = self.train(*words, *more, "--resume", runs[0] / first, "--save", runs[1], "--async-save",
                                "--save-every", 1, "--keep", 1, world=world)
            self.assertIn(f"step 3: is being saved in {runs[1]}", output)
            self.assertIn(f"goes on after step 2 from {runs[0] / first}, saved by {world} rank", output)
            self.assertEqual([path.name for path in runs[1].glob("step-*")], [last])
            for path in (runs[0] / last).iterdir():  # parameters, moments, random state, options
                self.assertEqual(path.read_bytes(), (runs[1] / last / path.name).read_bytes(), path.name)

    def test_resumes_with_other_ranks_at_the_same_place_of_the_epochs(self):
        folder = self.text.with_name("run")
        words = ["--epochs", 2, "--batch", 2, "--sample", 0, "--save", folder, "--resume", folder]
        steps = ((len(TEXT) * 9 // 10 - 1) // 16 // 4) * 2  # of 2 ranks
        self.train(*words, "--save-every", steps // 2, "--keep", 3, world=2)  # the folder is still empty
        for checkpoint in folder.glob("step-*"):
            if int(checkpoint.name[5:]) > steps // 2:
                shutil.rmtree(checkpoint)
        output = self.train(*words)
        self.assertRegex(output, rf"goes on after step {steps} from .*, saved by 2 ranks")  # of as many for an epoch
        self.assertRegex(output, r"epoch 2, step (\d+): validation loss")

    def test_a_training_that_is_over_is_only_sampled(self):
        folder = self.text.with_name("run")
        self.train("--save", folder)
        output = self.train("--resume", folder, "--sample", 3)
        self.assertRegex(output, r"goes on after step 4 .*\n(.*\n)*.*0 characters in .*; validation loss \d")

    def test_begins_with_the_values_of_a_checkpoint_or_a_file(self):
        folder = self.text.with_name("run")
        self.train("--save", folder, "--lr", 0.05, world=2)
        file = folder / "step-000000000004"
        losses = [re.findall(r"step 1/4 +loss (\S+)", self.train(*words))[0]
                  for words in ([], ["--init-from", folder], ["--init-from", file])]
        self.assertEqual(losses[1], losses[2])
        self.assertNotEqual(losses[0], losses[1])
        one = self.text.with_name("one")
        self.train("--save", one, "--lr", 0.05)
        self.assertRegex(self.train("--init-from", next(one.glob("step-*/model-*"))), r"begins with the values of")

    def write_gpt2(self):
        """A folder as Python's transformers makes it, of a model whose values are all 0."""
        folder = self.text.with_name("gpt2")
        folder.mkdir()
        vocabulary = len(set(TEXT))
        config = {"model_type": "gpt2", "vocab_size": vocabulary, "n_positions": 16, "n_embd": 16, "n_layer": 2,
                  "n_head": 2}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        block = {"ln_1": [16], "ln_2": [16], "attn.c_attn": [16, 48], "attn.c_proj": [16, 16], "mlp.c_fc": [16, 64],
                 "mlp.c_proj": [64, 16]}
        shapes = {"wte.weight": [vocabulary, 16], "wpe.weight": [16, 16], "ln_f.weight": [16], "ln_f.bias": [16]}
        for i in range(2):
            for name, shape in block.items():
                shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[-1:]}
        header, end = {}, 0
        for name, shape in shapes.items():
            begin, end = end, end + 4 * math.prod(shape)
            header["transformer." + name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
        return folder

    def test_begins_with_the_values_of_a_gpt2(self):
        folder = self.write_gpt2()
        output = self.train("--init-from", folder, "--tanh-gelu", world=2)
        self.assertIn(f"begins with the values of {folder}", output)
        loss = float(re.search(r"step 1/4 +loss (\S+)", output)[1])
        self.assertAlmostEqual(loss, math.log(len(set(TEXT))), delta=0.001)  # all tokens are as likely
        for words, why in (([], "--heads 2 with --tanh-gelu"), (["--tanh-gelu", "--heads", 4], "--heads 2 with"),
                           (["--tanh-gelu", "--layers", 3], "h.2"), (["--tanh-gelu", "--dim", 32], r"\[32\]|32\]")):
            self.assert_fails(self.run_gpt("--init-from", folder, *words), 1, why)

    def test_reports_checkpoints_that_are_not_there_or_do_not_fit(self):
        folder = self.text.with_name("run")
        self.assert_fails(self.run_gpt("--resume", folder), 1, "run: expected a checkpoint .* no such folder")
        self.train("--save", folder)
        done = self.run_gpt("--resume", folder, "--layers", 1)
        self.assertEqual(done.returncode, 1)
        self.assertIn("blocks.1.fc.bias: extra, the model has no such tensor", done.stderr)
        self.assert_fails(self.run_gpt("--save-every", 2), 2, "--save-every requires --save")
        self.assert_fails(self.run_gpt("--save", self.text), 1, "text")

    def test_reports_a_text_that_is_missing_or_too_short(self):
        missing = self.run_gpt("--text", "no such file")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("no such file", missing.stderr)
        for content, why in ((b"short", "expected at least"), (b"", "is empty"), (b"a\0b" * 999, "is not a text"),
                             (b"a", "expected at least")):
            with self.subTest(why):
                self.text.write_bytes(content)
                self.assert_fails(self.run_gpt(), 1, why)
        self.text.write_bytes(b"\n" * 999)
        self.assert_fails(self.run_gpt("--tokenizer", "words"), 1, "without words")
        self.text.write_text(TEXT, encoding="utf-8")
        self.assert_fails(self.run_gpt("--epochs", 1, "--batch", 999), 1, "expected at least")
        self.assert_fails(self.run_gpt("--prompt", "%"), 1, "which the text .* does not have")
        self.assert_fails(self.run_gpt("--prompt", " ", "--tokenizer", "words"), 1, "--prompt has no word")
        self.assert_fails(self.run_gpt("--text", "/dev/zero"), 1, "is not a text")

    def assert_fails(self, done, status, why):
        """One sentence and the status."""
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertRegex(done.stderr, rf"^gpt: .*({why}).*\n\Z")

    def test_reports_wrong_flags(self):
        bad = self.text.with_name("bad")
        bad.write_text("batsch = 2\n", encoding="utf-8")
        cases = ((["--steps", 0], "--steps"), (["--epochs", 2, "--steps", 4], "--steps"), (["--unknown"], "unknown"),
                 (["--dropout", 1], "--dropout: .* to 0.99"),
                 (["--lr", "nan"], "--lr: expected a number above 0, found nan"), (["--batch", "x"], "--batch"),
                 (["--heads", 3], "--heads"), (["--text", ""], "expected a path"),
                 (["--size", "llama", "--heads", 16], "even"),
                 (["--size", "llama", "--tanh-gelu"], "not for --size llama"), (["--seed", 2**63], "--seed"),
                 (["--batch", 2**62], "--batch"), (["--seq", -1], "--seq"),
                 (["--size", "huge"], "--size"), (["--tokenizer", "bytes"], "bytes not in"),
                 (["--tokenizer", "gpt2"], "--merges"), (["--merges", "x"], "--tokenizer gpt2"),
                 (["--tokenizer", "words", "--vocab_size", 9], "--vocab_size"),
                 (["--fp16", "--bf16"], "excludes"), (["--ddp-backend", "pytorch_ddp"], "fully_sharded"),
                 (["--ddp-backend", "fully_sharded", "--strategy", "replicate"], "excludes"),
                 (["--cpu-offload"], "--cpu-offload.*--no-cuda|--cpu-offload: it takes parameters off a GPU"),
                 (["--config", "no such file"], "no such file"), (["--config", bad], "batsch"))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for (words, why), done in zip(cases, pool.map(lambda case: self.run_gpt(*case[0]), cases)):
                with self.subTest(words):
                    self.assert_fails(done, 2, why)

    def test_two_ranks_report_what_one_does(self):
        for words, status, why in ((["--heads", 3], 2, "--heads"), (["--text", "no such file"], 1, "no such file")):
            done = self.run_gpt(*words, world=2)
            self.assertEqual(done.returncode, status, done.stderr)
            for line in done.stderr.splitlines():
                self.assertRegex(line, rf"^(\[rank \d\] gpt: .*{why}|fsdprun: )")

    def test_reports_a_full_disk(self):
        command = [GPT, "--text", str(self.text), *SMALL]
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^gpt: cannot write .* full\n\Z")


if __name__ == "__main__":
    GPT, FSDPRUN = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
