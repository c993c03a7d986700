"""Trains small networks on a few digits, alone and as several ranks, and checks what mnist prints and writes.

    python3 mnist_test.py MNIST FSDPRUN OPEN_SAVED
"""

import concurrent.futures
import functools
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import unittest

MNIST = FSDPRUN = OPEN_SAVED = ""
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
SHARED_MNIST = ROOT.parent / "shared" / "data" / "mnist"
SMALL = "--no-cuda --train-samples 32 --test-samples 50 --batch-size 16 --test-batch-size 20 --epochs 1".split()
TIMEOUT = 120
EPOCH = re.compile(r"Train Epoch: (\d+)  Loss: (\d+\.\d{6})$", re.MULTILINE)
TEST = re.compile(r"Test set: Average loss: \d+\.\d{4}, Accuracy: (\d+)/(\d+) \((\d+\.\d\d)%\)$", re.MULTILINE)
GROUP = re.compile(r"\(group '(\w+)':")
RESNET = "--model resnet18 --test-samples 10"
# Each entry has flags, and further flags with which two ranks print nearly the same loss, with a relative tolerance of
# 0.05.
LOW_PRECISION = (
    ("--no-dropout --lr 0.1", "--bf16"), ("--no-dropout --lr 0.1", "--fp16"), ("--no-dropout --lr 0.1", "--autocast"),
    (f"{RESNET} --sync-bn", "--autocast"),
)
WRONG_FLAGS = (
    "--epocs 3", "--epochs 0", "--epochs many", "--model vgg", "--gamma 2", "--batch-size", "--seed -1", "--lr nan",
    "--data=", "--strategy vgg", "--optimizer vgg", "--mesh 2by1", "--compare --auto-wrap", "--min-num-params 5",
    "--min-num-params 0 --auto-wrap", "--compare --strategy replicate", "--compare --save-model",
    "--cpu-offload",  # This flag excludes --no-cuda.
    "--sync-bn",  # This network has no batch norm.
)
OPEN_BOTH = """
import sys, torch
one, two = (torch.load(folder + "/mnist_cnn.pt") for folder in sys.argv[1:])
assert list(one) == list(two) and one["conv1.weight"].shape == (32, 1, 3, 3), list(one)
for name in one: torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)
torch.nn.Linear(9216, 128).load_state_dict({key: two["fc1." + key] for key in ("weight", "bias")})
"""


def run_mnist(folder, words="", world=1, **settings):
    launcher = [FSDPRUN, "--nproc_per_node", str(world)] if world > 1 else []
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    return subprocess.run([*launcher, MNIST, *SMALL, *words.split()], cwd=folder, text=True, timeout=TIMEOUT,
                          check=False, **settings)


@functools.cache
def joined(world, words=""):
    """Trains with batches of 32 images over all ranks and saves the model. All tests share this run. Returns the
    output and the folder."""
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    done = run_mnist(folder.name, f"--no-dropout --epochs 2 --train-samples 96 --batch-size {32 // world} "
                     f"--test-samples 7 --test-batch-size 2 --save-model {words}", world)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, pathlib.Path(folder.name)


class Digits(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, words, world=1):
        done = run_mnist(self.folder, words, world)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def loss(self, words, world=1):
        """Returns the loss of the last epoch."""
        return float(EPOCH.findall(self.train(words, world))[-1][1])

    def assert_one_sentence(self, status, *parts, words="", **settings):
        done = run_mnist(self.folder, words, **settings)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertRegex(done.stderr, r"\Afsdp-mnist: [^\n]+\n\Z")
        for part in parts:
            self.assertIn(part, done.stderr)


class Training(Digits):
    def test_prints_model_epochs_tests_seconds_and_memory(self):
        output, _ = joined(2)
        for pattern in (r"fc1: ", r"\(group '", r"Elapsed: \d+\.\d\d s",
                        r"Peak memory of a rank: rows \d.* MB, whole parameters .*, gradients .*, optimizer .* MB"):
            self.assertRegex(output, pattern)
        self.assertEqual([epoch for epoch, _ in EPOCH.findall(output)], ["1", "2"], output)

    def test_writes_a_trace_and_the_metrics_of_each_epoch(self):
        output = self.train("--epochs 2 --explain --trace trace.json --metrics metrics.jsonl", world=2)
        self.assertIn("a rank holds at most: ", output)
        events = json.loads((self.folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
        self.assertEqual({event["pid"] for event in events}, {0, 1})
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("loss", "accuracy"):
            self.assertEqual([line["step"] for line in lines if name in line], [1, 2])

    def test_learns_the_digits_that_it_draws_or_those_of_mnist(self):
        found = self.train("--train-samples 480 --test-samples 200 --epochs 2", world=2)
        self.assertGreater(float(TEST.findall(found)[-1][2]), 80, found)
        if SHARED_MNIST.is_dir():
            found = self.train(f"--data {SHARED_MNIST} --train-samples 320 --test-samples 200 --batch-size 8", world=2)
            self.assertGreater(float(TEST.findall(found)[-1][2]), 50, found)

    def test_two_ranks_train_as_one_with_the_joined_batch(self):
        one, *others = ([float(loss) for _, loss in EPOCH.findall(joined(*case)[0])]
                        for case in ((1,), (2,), (2, "--auto-wrap"), (2, "--strategy replicate")))
        self.assertEqual(len(one), 2)
        for two in others:
            for ours, expected in zip(two, one, strict=True):
                self.assertAlmostEqual(ours, expected, delta=1e-5 * max(1.0, expected))

    def test_data_parallel_ranks_print_what_fully_sharded_ones_do(self):
        (sharded, _), (replicated, _) = joined(2), joined(2, "--strategy replicate")
        self.assertEqual(EPOCH.findall(sharded), EPOCH.findall(replicated))
        self.assertEqual(TEST.findall(sharded), TEST.findall(replicated))

    def test_auto_wrap_makes_a_group_of_fc1_alone(self):
        whole, wrapped = (GROUP.findall(joined(*case)[0]) for case in ((2,), (2, "--auto-wrap")))
        self.assertEqual((len(whole), wrapped), (1, [*whole, "fc1"]))

    def test_low_precision_trains_to_nearby_losses(self):
        for words, more in LOW_PRECISION:
            expected, found = self.loss(words, 2), self.loss(f"{words} {more}", 2)
            self.assertNotEqual(found, expected, more)
            self.assertAlmostEqual(found, expected, delta=0.05 * expected, msg=more)

    def test_the_learning_rate_falls_after_the_first_epoch_already(self):
        output = self.train("--epochs 3 --gamma 0")  # The network learns nothing with a learning rate of 0.
        first, second, third = (line for line in output.splitlines() if line.startswith("Test set: "))
        self.assertEqual([second, third], [first, first])

    def test_each_image_of_the_test_is_counted_once_where_ranks_have_unequal_shares(self):
        for samples, output in (7, joined(2)[0]), (1, self.train("--test-samples 1", world=2)):
            self.assertEqual({counted for _, counted, _ in TEST.findall(output)}, {str(samples)}, output)

    def test_other_optimizers_train_as_well(self):
        for optimizer in ("adam", "rmsprop"):
            output = self.train(f"--optimizer {optimizer} --train-samples 480 --epochs 2", world=2)
            (_, first), (_, second) = EPOCH.findall(output)
            self.assertLess(float(second), float(first), output)

    def test_sizes_of_groups_are_swept(self):
        command = [sys.executable, ROOT / "scripts" / "sweep_min_num_params", "--fsdprun", FSDPRUN, "--values", "1",
                   "1000000", "100000000", "--", MNIST, *SMALL, *RESNET.split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split() for line in done.stdout.splitlines()[1:-1]]
        self.assertEqual([(value, groups) for value, groups, *_ in lines],
                         [("1", "42"), ("1000000", "6"), ("100000000", "1")], done.stdout)
        least, some, most = (int(line[2]) for line in lines)  # The third column is the bytes of whole parameters.
        self.assertGreater(most, 4 * 11_000_000, done.stdout)  # With one group, all parameters are whole at the peak.
        self.assertLess(some, 0.7 * most, done.stdout)
        self.assertLess(least, 0.5 * some, done.stdout)
        self.assertRegex(done.stdout, r"\nfastest: \d+, fewest bytes: \d+\n\Z")

    def test_compares_ddp_fsdp_and_wrapping(self):
        output = self.train("--compare --epochs 2 --batch-size 8", world=4)
        line = re.compile(r"(DDP|FSDP\+wrap|FSDP) +(\d+) +\S+ MB +\d+\.\d\d +\d+\.\d{3} +(\d+\.\d{6}) +(\d+\.\d{4}) "
                          r"+(\S+) %$", re.MULTILINE)
        names, peaks, *results = zip(*line.findall(output))
        self.assertEqual(names, ("DDP", "FSDP", "FSDP+wrap"), output)
        ddp, fsdp, wrap = map(int, peaks)
        self.assertLess(fsdp, ddp, output)
        self.assertLessEqual(wrap, fsdp, output)
        for of_ddp, of_fsdp, _ in results:  # losses of training and test, accuracy
            self.assertEqual(of_fsdp, of_ddp, output)
        epochs = EPOCH.findall(output)
        self.assertEqual(len(epochs), 6, output)
        self.assertEqual(epochs[2:4], epochs[:2], output)

    def test_activations_that_are_computed_again_change_nothing(self):
        # Dropout draws the same numbers again. Batch norms update their statistics only once for each batch; the test
        # of the network uses these statistics.
        for words in ("--test-samples 10", RESNET):
            plain, again = (self.train(f"{words} {more}") for more in ("", "--checkpoint-activations"))
            self.assertIn("layer4" if words is RESNET else "fc1", plain)
            self.assertEqual(EPOCH.findall(again), EPOCH.findall(plain))
            self.assertEqual(TEST.findall(again), TEST.findall(plain))

    def test_ranks_with_synchronised_batch_norms_train_as_one_with_the_joined_batch(self):
        # At the default learning rate, the first update increases rounding errors to 1e-3 of the loss, and processors
        # round differently.
        alone = self.loss(f"{RESNET} --lr 0.01 --sync-bn")
        ranks, apart = (self.loss(f"{RESNET} --lr 0.01 --batch-size 8 {more}", world=2) for more in ("--sync-bn", ""))
        self.assertLess(abs(alone - ranks), 1e-4 * alone)
        self.assertGreater(abs(alone - apart), 1e-3 * alone)


class Saving(Digits):
    def test_a_plain_libtorch_program_opens_the_model_of_two_ranks(self):
        _, folder = joined(2)
        done = subprocess.run([OPEN_SAVED, "mnist_cnn.pt"], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("fc1.weight [128, 9216]\n", done.stdout)
        self.assertEqual(len(done.stdout.splitlines()), 8, done.stdout)
        self.assertEqual([path.name for path in folder.iterdir()], ["mnist_cnn.pt"])

    @unittest.skipUnless(PYTHON.exists(), "there is no .venv with Python's torch")
    def test_python_opens_the_model_of_two_ranks_as_that_of_one(self):
        done = subprocess.run([PYTHON, "-c", OPEN_BOTH, joined(1)[1], joined(2)[1]], capture_output=True, text=True,
                              timeout=TIMEOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_full_disk_is_one_sentence_and_leaves_no_file(self):
        def no_file_may_be_large():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        self.assert_one_sentence(1, "mnist_cnn.pt: cannot write", "File too large", words="--save-model",
                                 preexec_fn=no_file_may_be_large)
        self.assertEqual(list(self.folder.iterdir()), [])
        with open("/dev/full", "w", encoding="utf-8") as full:
            self.assert_one_sentence(1, "cannot write to standard output", stdout=full)


class Mistakes(Digits):
    def test_wrong_flags_are_one_sentence_and_status_2(self):
        def check(words):
            self.assert_one_sentence(2, words.split()[0].rstrip("="), words=words)

        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(check, WRONG_FLAGS))

    def test_wrong_data_is_one_sentence_and_status_1(self):
        self.assert_one_sentence(1, "there is no folder nowhere", words="--data nowhere")
        self.assert_one_sentence(1, "product is the number of ranks (1), found 2 x 1", words="--mesh 2x1")
        data = self.folder / "data"
        data.mkdir()
        self.assert_one_sentence(1, "has neither train-images-idx3-ubyte nor", words="--data data")
        for part in "train", "t10k":
            (data / f"{part}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7]))
            (data / f"{part}-images-idx3-ubyte").write_bytes(b"")
        self.assert_one_sentence(1, "train-images-idx3-ubyte is empty", words="--data data")


if __name__ == "__main__":
    MNIST, FSDPRUN, OPEN_SAVED = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
