"""Trains small models, alone and as two ranks, and checks what gpt prints.

    python3 gpt_test.py GPT FSDPRUN
"""

import concurrent.futures
import json
import math
import pathlib
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

GPT = FSDPRUN = ""
SMALL = "--dim 16 --layers 2 --heads 2 --seq 16 --steps 4 --eval-every 2 --warmup 1 --sample 12 --log-seconds 0".split()
TEXT = "".join(f"{i} bottles of beer on the wall, take one down, pass it around.\n" for i in range(40))
EPOCH_TOKENS = len(TEXT) * 9 // 10 - 1  # The rest of the text is for validation.
ALIKE = 0.0011  # The program prints three digits of a loss. Tolerances larger than this one are relative.

LOW_PRECISION = [("--bf16", 0.05), ("--autocast", 0.05), ("--fp16", 0.05), ("--fp16 --autocast", 0.05)]
# Each entry has flags, a number of ranks, and a list of further flags with tolerances. With each of the further flags,
# two ranks have to train to the same losses.
SAME_LOSSES = (
    ("--batch 4 --steps 10 --lr 0.02", 1, [("--batch 2", ALIKE)]),
    ("--batch 8 --epochs 1", 1, [("--batch 4", ALIKE)]),
    ("--batch 4 --steps 6 --lr 0.02", 1, [
        ("--batch 1 --update-freq 2", ALIKE), ("--sequence 2", ALIKE), ("--tensor 2", ALIKE),
        ("--sequence 2 --sequence-method heads --checkpoint-activations", ALIKE)]),
    ("--batch 2 --steps 6", 2, [
        ("--strategy shard_grad_op", 0), ("--strategy replicate", 0), ("--strategy shard_optimizer --mesh 1x2", 0),
        ("--ddp-backend fully_sharded --optimizer adamw --update-freq 1", 0), *LOW_PRECISION]),
    ("--batch 2 --steps 6 --size llama --lr 0.001", 2, [
        *LOW_PRECISION, ("--batch 4 --sequence 2", ALIKE), ("--batch 4 --tensor 2", ALIKE)]),
)
# Flags of pipelines and their numbers of ranks. They train on the joined batch that one rank has with --batch 8.
STAGES = (
    ("--pipe 2", 2), ("--pipe 2 --micro-batches 3 --schedule gpipe", 2), ("--pipe 4 --micro-batches 1", 4),
    ("--pipe 2 --schedule interleaved", 2), ("--pipe 2 --schedule interleaved --batch 4", 4),
    ("--pipe 2 --slices 3 --checkpoint-activations", 2), ("--pipe 2 --slices auto", 2), ("--pipe 2 --batch 4", 4),
    ("--pipe 2 --batch 4 --update-freq 2 --micro-batches 2", 2), ("--pipe 2 --tensor 2", 4), ("--pipe 2 --sequence 2", 4),
)
WRONG_FLAGS = (
    ("--steps 0", "--steps"), ("--epochs 2 --steps 4", "--steps"), ("--unknown", "unknown"),
    ("--dropout 1", "--dropout: .* to 0.99"), ("--lr nan", "--lr: expected a number above 0, found nan"),
    ("--batch x", "--batch"), ("--heads 3", "--heads"), ("--text ''", "expected a path"),
    ("--size llama --heads 16", "even"), ("--size llama --tanh-gelu", "llama does not support --tanh-gelu"),
    (f"--seed {2**63}", "--seed"), (f"--batch {2**62}", "--batch"), ("--seq -1", "--seq"), ("--size huge", "--size"),
    ("--tokenizer bytes", "bytes not in"), ("--tokenizer gpt2", "--merges"), ("--merges x", "--tokenizer gpt2"),
    ("--tokenizer words --vocab_size 9", "--vocab_size"), ("--fp16 --bf16", "excludes"),
    ("--ddp-backend pytorch_ddp", "fully_sharded"), ("--ddp-backend fully_sharded --strategy replicate", "excludes"),
    ("--cpu-offload", "--cpu-offload.*--no-cuda|--cpu-offload: expected a GPU"),
    ("--sequence 2 --dropout 0.1", "over several ranks has no"), ("--sequence 17", "must not exceed --seq"),
    ("--sequence-method zigzag", "zigzag not in"), ("--tensor 3", "must divide --heads"),
    ("--tensor 2 --dropout 0.1", "--dropout: ranks that share"),
    ("--tensor 2 --mesh 2", "excludes"), ("--pipe 2 --mesh 2", "excludes"), ("--micro-batches 2", "requires --pipe"),
    ("--pipe 2 --micro-batches 17", "must not exceed --batch"), ("--pipe 4", "--layers to be at least"),
    ("--pipe 2 --schedule interleaved --micro-batches 3", "a multiple of --pipe"), ("--slices 2", "requires --pipe"),
    ("--pipe 2 --slices many", "--slices"), ("--pipe 2 --slices 17", "must not exceed --seq"),
    ("--pipe 2 --slices 2 --schedule 1f1b", "requires --schedule gpipe"),
    ("--pipe 2 --slices 2 --dropout 0.1", "--dropout"),
    ("--pipe 2 --slices 2 --sequence 2", "both split the tokens"),
    ("--config nowhere", "nowhere"), ("--config bad", "batsch"),
    ("--save-every 2", "--save-every requires --save"),
)
# Each entry has the content of the text file, further flags, and a part of the error message.
WRONG_TEXTS = (
    (b"short", "", "expected at least"), (b"", "", "is empty"), (b"a\0b" * 999, "", "is not a text"),
    (b"a", "", "expected at least"), (b"\n" * 999, "--tokenizer words", "without words"),
    (TEXT.encode(), "--epochs 1 --batch 999", "expected at least"), (TEXT.encode(), "--text nowhere", "nowhere"),
    (TEXT.encode(), "--text /dev/zero", "is not a text file"),
    (TEXT.encode(), "--prompt %", "does not occur in the text"),
    (TEXT.encode(), "--prompt ' ' --tokenizer words", "--prompt has no word"),
)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "text").write_text(TEXT, encoding="utf-8")

    def run_gpt(self, words="", world=1, **settings):
        launcher = [FSDPRUN, "--nproc_per_node", str(world)] if world > 1 else []
        small = [word for word in SMALL if "--epochs" not in words or word not in ("--steps", "4")]
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
        return subprocess.run([*launcher, GPT, "--text", "text", *small, *shlex.split(words)], cwd=self.folder,
                              text=True, errors="replace",  # A model may write bytes that are not UTF-8.
                              timeout=120, check=False, **settings)

    def train(self, words="", world=1):
        done = self.run_gpt(words, world)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def losses(self, words="", world=1):
        found = re.findall(r"step \d+/\d+ +loss (\d+\.\d+)", self.train(f"--sample 0 {words}", world))
        self.assertGreater(len(found), 3)
        return [float(loss) for loss in found]

    def assert_fails(self, done, status, why):
        """Asserts that the program ended with `status` and printed one sentence, which contains `why`."""
        self.assertEqual(done.returncode, status, f"{done.stdout}{done.stderr}")
        self.assertRegex(done.stderr, rf"^fsdp-gpt: .*({why}).*\n\Z")


class Training(Case):
    def test_two_ranks_train_as_one_with_the_joined_batch(self):
        for words, world, others in SAME_LOSSES:
            expected = self.losses(words, world)
            for more, tolerance in others:
                with self.subTest(f"{words} {more}"):
                    found = self.losses(f"{words} {more}", world=2)
                    if more in ("--bf16", "--autocast"):  # fp16 changes only digits that are not printed.
                        self.assertNotEqual(found, expected)
                    for ours, theirs in zip(found, expected, strict=True):
                        self.assertAlmostEqual(ours, theirs, delta=tolerance * (theirs if tolerance > ALIKE else 1))

    def test_stages_train_and_write_as_the_whole_model(self):
        words = "--layers 4 --batch 8 --lr 0.02 --top-k 1"
        for size, stages in (("", STAGES), ("--size llama", STAGES[3:6]), ("--bf16", STAGES[:1]), ("--fp16", STAGES[:1]),
                             ("--autocast", STAGES[:1])):
            whole = self.results(f"{words} {size}")
            for more, world in stages:
                with self.subTest(f"{size} {more}"):
                    found = self.results(f"{words} {size} {more}", world)
                    tolerance = 0.05 if size in ("--bf16", "--fp16", "--autocast") else ALIKE
                    for ours, theirs in zip(found["losses"], whole["losses"], strict=True):
                        self.assertAlmostEqual(ours, theirs, delta=tolerance)
                    self.assertAlmostEqual(found["validation"], whole["validation"], delta=max(tolerance, 0.01))
                    if tolerance == ALIKE:
                        self.assertEqual(found["sample"], whole["sample"])

    def results(self, words, world=1):
        output = re.sub(r"^\[rank 0\] ", "", self.train(words, world), flags=re.MULTILINE)
        return {"losses": [float(loss) for loss in re.findall(r"step \d+/\d+ +loss (\d+\.\d+)", output)],
                "validation": float(re.search(r"step 4: validation loss (\S+)", output)[1]),
                "sample": re.search(r"sample:\n((.*\n)*?)\nholds", output)[1]}

    def test_explains_what_each_axis_moves(self):
        words = "--pipe 2 --tensor 2 --steps 1 --batch 64 --seq 64 --dim 64 --sample 0 --eval-every 0 --explain"
        output = self.train(words, world=4)
        activations = 64 * 64 * 64 * 4 / 1e6
        for pattern in (r"mesh: pipe 2 x data 1 x sequence 1 x tensor 2; in a step rank 0 sends at most",
                        rf"pipe: activations of 4 micro-batches, {activations:.2f} MB; there are 2 stages",
                        rf"tensor: 4 all-reduces of activations in 1 blocks, {4 * activations:.2f} MB"):
            self.assertRegex(output, pattern)

    def test_activations_that_are_computed_again_change_no_loss(self):
        for more in ("", "--dropout 0.3"):
            expected = self.losses(f"--batch 2 {more}")
            for flag in ("--checkpoint-activations", "--offload-activations"):
                self.assertEqual(self.losses(f"--batch 2 {flag} {more}"), expected)

    def test_prints_groups_progress_validation_sample_and_that_each_of_two_ranks_holds_about_half(self):
        output = self.train("--batch 2", world=2)
        for pattern in (r"blocks\.1", r"group", r"step 4/4 +loss \d\.\d+ .* tokens/s .* left",
                        r"step 2: validation loss \d\.\d+", r"step 4: validation loss", r"sample:", r"unsharded",
                        r"characters/s on 2 ranks"):
            self.assertRegex(output, pattern)
        ranks = [[float(share) for share in re.findall(r"(\d+\.\d) %", line)][:3]  # parameters, gradients, optimizer
                 for line in re.findall(r"rank \d(?: +\d+\.\d+ MB +\d+\.\d %){4}", output)]
        self.assertEqual(len(ranks), 2, output)
        for first, second in zip(*ranks, strict=True):
            self.assertTrue(40 <= first <= 60, output)
            self.assertAlmostEqual(first + second, 100, delta=0.2)

    def test_writes_a_trace_of_all_ranks_and_the_metrics_of_each_step(self):
        output = self.train("--batch 2 --explain --trace trace.json --profile --metrics metrics.jsonl "
                            "--tensorboard events --peak-flops 1e12", world=2)
        for pattern in (r"2 ranks, sharded over 2", r"blocks\.1 +\d+ .*kFullShard\n", r"a step moves at most: "):
            self.assertRegex(output, pattern)
        events = json.loads((self.folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
        for rank in (0, 1):
            own = [event for event in events if event["pid"] == rank]
            names = [event["name"] for event in own]
            self.assertLessEqual({"reduce_scatter blocks.0", "reduce blocks.1", "aten::mm"}, set(names))
            self.assertEqual(sum(name.startswith("optimizer step") for name in names), 4)
            passes = [event for event in own if event["name"].split()[0] in ("forward", "backward")]
            for product in (event for event in own if event["name"] == "aten::mm"):  # Both use the same clock.
                self.assertTrue(any(one["ts"] <= product["ts"] <= one["ts"] + one["dur"] for one in passes), product)
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        trained = [line for line in lines if "loss" in line]
        self.assertEqual([line["step"] for line in trained], [1, 2, 3, 4])
        self.assertEqual([line["step"] for line in lines if "validation_loss" in line], [2, 4])
        shown = re.findall(r"step \d+/4 +loss (\d+\.\d+)", output)
        self.assertEqual([f"{line['loss']:.3f}" for line in trained], shown)
        for line in trained:
            self.assertLess(0, min(line[name] for name in ("mfu", "characters_per_second", "peak_bytes/rows")))
        self.assertEqual(len(list((self.folder / "events").iterdir())), 1)

    def test_trains_alone_on_the_text_it_carries(self):
        done = subprocess.run([GPT, *SMALL, "--batch", "64", "--eval-every", "0", "--seq", "64"], capture_output=True,
                              text=True, timeout=120, check=True)
        self.assertRegex(done.stdout, r"tok: .*\n +weight \[65, 16\]")

    def test_epochs_decide_on_the_steps(self):
        output = self.train("--epochs 2 --batch_size 4 --update-freq 2 --eval-every 0", world=2)
        # A step has 16 tokens in a sequence, 4 sequences in a micro-batch, and 2 micro-batches on each of 2 ranks.
        steps = EPOCH_TOKENS // 16 // 16
        for pattern in (rf"step {2 * steps}/{2 * steps} ", rf"epoch 2, step {2 * steps}: validation loss",
                        rf"epoch 1, step {steps}: validation loss \d\.\d+ nats per character, perplexity \d"):
            self.assertRegex(output, pattern)

    def test_trains_a_llama_on_words_with_dropout_and_a_prompt(self):
        output = self.train("--size llama --tokenizer words --dropout 0.1 --prompt '12 bottles of' --top-k 1 "
                            "--temperature 1e-300 --batch 1 --no-reshard-after-forward", world=2)
        for pattern in (r"RMSNorm|norm1", r"sample:\n\[rank 0\] 12 bottles of ", r"nats per word, perplexity \d",
                        r"a vocabulary of \d+; validation perplexity per word by counting: unigram \d+\.\d+, "
                        r"Kneser-Ney 3-gram \d+\.\d+"):
            self.assertRegex(output, pattern)

    def test_trains_on_a_folder_with_tokens_of_its_own(self):
        data = self.folder / "data"
        data.mkdir()
        (data / "train.txt").write_text(TEXT, encoding="utf-8")
        (data / "valid.txt").write_text(TEXT[:600], encoding="utf-8")
        (data / "vocab.bpe").write_text("#version: 0.2\no t\nĠ b\n", encoding="utf-8")
        output = self.train("--text data --tokenizer gpt2 --merges data/vocab.bpe --batch 2")
        self.assertRegex(output, r"a vocabulary of 259; .* per token")
        done = self.run_gpt("--text data --vocab_size 292 --batch 2", world=2)
        if "built without SentencePiece" in done.stderr:
            self.skipTest("gpt was built without SentencePiece")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"a vocabulary of 292; .* per token")

    def test_takes_flags_from_a_file_and_prefers_its_own(self):
        (self.folder / "config").write_text("batch_size = 2\nsize = llama\nsteps = 3\n", encoding="utf-8")
        output = self.train("--config config --steps 2 --sample 1")
        for part in ("norm1", "step 2/2 ", "64 characters in"):  # 2 steps of 2 sequences of 16
            self.assertIn(part, output)

    def test_every_optimizer_trains_and_resumes(self):
        for optimizer, lr in (("adam", 0.01), ("cpu_adam", 0.01), ("sgd", 0.1), ("rmsprop", 0.003), ("adagrad", 0.05),
                              ("adadelta", 1)):
            with self.subTest(optimizer):
                words = f"--optimizer {optimizer} --lr {lr} --batch 2 --save {optimizer}"
                losses = self.losses(f"{words} --steps 20", world=2)
                self.assertLess(losses[-1], losses[0])
                resumed = self.train(f"{words} --steps 21 --sample 0 --resume {optimizer}", world=2)
                self.assertIn("goes on after step 20", resumed)


class Checkpoints(Case):
    def test_resumes_bit_for_bit_with_the_same_ranks(self):
        for world, more in ((1, "--epochs 1"), (2, "--steps 4 --fp16")):
            words = f"--batch 2 --dropout 0.2 --sample 0 --eval-every 0 {more}"
            whole, half = (self.folder / f"{name}{world}" for name in ("whole", "half"))
            output = self.train(f"{words} --save {whole} --save-every 2 --keep 100", world)
            first, *_, last = sorted(path.name for path in whole.glob("step-*"))
            self.assertIn(f"step 2: saved in {whole}", output)
            output = self.train(f"{words} --resume {whole / first} --save {half} --async-save --save-every 1 --keep 1",
                                world)
            self.assertIn(f"step 3: is being saved in {half}", output)
            self.assertIn(f"goes on after step 2 from {whole / first}, saved by {world} rank", output)
            self.assertEqual([path.name for path in half.glob("step-*")], [last])
            for path in (whole / last).iterdir():  # Files hold parameters, moments, random state, options.
                self.assertEqual(path.read_bytes(), (half / last / path.name).read_bytes(), path.name)

    def test_resumes_with_other_ranks_at_the_same_place_of_the_epochs(self):
        words = "--epochs 2 --batch 2 --sample 0 --save run --resume run"
        steps = EPOCH_TOKENS // 16 // 4 * 2  # These are the steps of 2 ranks in one run.
        self.train(f"{words} --save-every {steps // 2} --keep 3", world=2)  # The folder is still empty.
        for checkpoint in (self.folder / "run").glob("step-*"):
            if int(checkpoint.name[5:]) > steps // 2:
                shutil.rmtree(checkpoint)
        output = self.train(words)
        # One rank needs as many steps for one epoch as two ranks need for two epochs.
        self.assertRegex(output, rf"goes on after step {steps} from .*, saved by 2 ranks")
        self.assertRegex(output, r"epoch 2, step (\d+): validation loss")

    def test_stages_and_whole_models_resume_and_begin_with_each_others_checkpoints(self):
        words = "--layers 4 --batch 8 --sample 0 --eval-every 0"
        stages = ("--pipe 2", 2), ("--pipe 2 --schedule interleaved --batch 4", 4)
        expected = self.losses(f"{words} --save whole --save-every 2 --keep 9")
        begun = self.losses(f"{words} --init-from whole")
        for number, (more, world) in enumerate(stages):
            self.train(f"{words} {more} --save {number} --save-every 2 --keep 9", world)
        for folder, more, world in (("whole", *stages[0]), ("0", "", 1), ("1", *stages[0]), ("0", *stages[1])):
            with self.subTest(f"{folder} {more}"):
                output = self.train(f"{words} {more} --resume {folder}/step-000000000002", world)
                found = [float(loss) for loss in re.findall(r"step \d+/\d+ +loss (\d+\.\d+)", output)]
                self.assertEqual(len(found), 2)
                for ours, theirs in zip(found, expected[2:], strict=True):
                    self.assertAlmostEqual(ours, theirs, delta=ALIKE)
        for ours, theirs in zip(self.losses(f"{words} --pipe 2 --init-from 1", 2), begun, strict=True):
            self.assertAlmostEqual(ours, theirs, delta=ALIKE)
        done = self.run_gpt("--pipe 2 --init-from text", world=2)
        self.assertIn("text: expected a folder of checkpoints, because --init-from", done.stderr)

    def test_a_training_that_is_over_is_only_sampled_and_another_begins_with_its_values(self):
        self.train("--save run --lr 0.05", world=2)
        self.assertRegex(self.train("--resume run --sample 3"),
                         r"goes on after step 4 .*\n(.*\n)*.*0 characters in .*; validation loss \d")
        plain, folder, newest = (self.losses(words)[0]
                                 for words in ("", "--init-from run", "--init-from run/step-000000000004"))
        self.assertEqual(folder, newest)
        self.assertNotEqual(plain, folder)
        self.train("--save one --lr 0.05")
        file = next((self.folder / "one").glob("step-*/model-*"))
        self.assertIn("begins with the values of", self.train(f"--init-from {file}"))

    def write_gpt2(self):
        """Writes a folder as Python's transformers writes it, with a GPT-2 whose values are all 0."""
        folder = self.folder / "gpt2"
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

    def test_begins_with_the_values_of_a_gpt2(self):
        self.write_gpt2()
        output = self.train("--init-from gpt2 --tanh-gelu", world=2)
        self.assertIn("begins with the values of gpt2", output)
        loss = float(re.search(r"step 1/4 +loss (\S+)", output)[1])
        self.assertAlmostEqual(loss, math.log(len(set(TEXT))), delta=0.001)  # All tokens are equally likely.
        for words, why in (("", "--heads 2 and --tanh-gelu"), ("--tanh-gelu --heads 4", "--heads 2 and"),
                           ("--tanh-gelu --layers 3", "h.2"), ("--tanh-gelu --dim 32", r"\[32\]|32\]")):
            self.assert_fails(self.run_gpt(f"--init-from gpt2 {words}"), 1, why)


class Mistakes(Case):
    def test_checkpoints_that_are_not_there_or_do_not_fit_are_reported(self):
        self.assert_fails(self.run_gpt("--resume run"), 1, "run: expected a checkpoint .* no such folder")
        self.train("--save run")
        done = self.run_gpt("--resume run --layers 1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("blocks.1.fc.bias: is in the checkpoint, but the model has no such tensor", done.stderr)
        self.assert_fails(self.run_gpt("--save text"), 1, "text")

    def test_texts_that_do_not_do_are_reported(self):
        for content, words, why in WRONG_TEXTS:
            with self.subTest(why):
                (self.folder / "text").write_bytes(content)
                self.assert_fails(self.run_gpt(words), 1, why)

    def test_wrong_flags_are_reported(self):
        (self.folder / "bad").write_text("batsch = 2\n", encoding="utf-8")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for (words, why), done in zip(WRONG_FLAGS, pool.map(self.run_gpt, [words for words, _ in WRONG_FLAGS])):
                with self.subTest(words):
                    self.assert_fails(done, 2, why)

    def test_two_ranks_report_what_one_does(self):
        product = "must divide the number of ranks, found the product 3 and the number of ranks 2"
        for words, status, why in (("--heads 3", 2, "--heads"), ("--text nowhere", 1, "nowhere"),
                                   ("--sequence 3", 1, product)):
            done = self.run_gpt(words, world=2)
            self.assertEqual(done.returncode, status, done.stderr)
            for line in done.stderr.splitlines():
                self.assertRegex(line, rf"^(\[rank \d\] fsdp-gpt: .*{why}|fsdprun: )")

    def test_a_full_disk_is_reported(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            self.assert_fails(self.run_gpt(stdout=full), 1, "cannot write .* full")


if __name__ == "__main__":
    GPT, FSDPRUN = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
