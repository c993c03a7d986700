"""Trains small networks on a few digits, alone and as several ranks, and checks what mnist prints and writes.

    python3 mnist_test.py MNIST FSDPRUN OPEN_SAVED
"""

import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import unittest

MNIST = FSDPRUN = OPEN_SAVED = ""
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHARED_MNIST = ROOT.parent / "shared" / "data" / "mnist"
SMALL = "--no-cuda --train-samples 160 --test-samples 50 --batch-size 16 --test-batch-size 20 --epochs 1".split()
TIMEOUT = 120
EPOCH = re.compile(r"Train Epoch: (\d+)  Loss: (\d+\.\d{6})$", re.MULTILINE)
TEST = re.compile(r"Test set: Average loss: \d+\.\d{4}, Accuracy: (\d+)/(\d+) \((\d+\.\d\d)%\)$", re.MULTILINE)


class Digits(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_mnist(self, *words, world=1, **settings):
        launcher = [FSDPRUN, "--nproc_per_node", str(world)] if world > 1 else []
        command = [*launcher, MNIST, *SMALL, *map(str, words)]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT, check=False,
                              **settings)

    def train(self, *words, world=1):
        done = self.run_mnist(*words, world=world)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def losses(self, *words, world=1):
        return [float(loss) for _, loss in EPOCH.findall(self.train(*words, world=world))]

    def assert_one_sentence(self, done, status, *words):
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertRegex(done.stderr, r"\Amnist: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, done.stderr)


class Training(Digits):
    def test_prints_model_epochs_tests_seconds_and_memory(self):
        output = self.train("--epochs", 2, world=2)
        for pattern in (r"fc1: ", r"\(group '", r"Elapsed: \d+\.\d\d s",
                        r"Peak memory of a rank: rows \d.* MB, whole parameters .*, gradients .*, optimizer .* MB"):
            self.assertRegex(output, pattern)
        self.assertEqual([epoch for epoch, _ in EPOCH.findall(output)], ["1", "2"], output)
        self.assertEqual([samples for _, samples, _ in TEST.findall(output)], ["50", "50"], output)

    def test_learns_the_digits_that_it_draws(self):
        output = self.train("--train-samples", 1200, "--test-samples", 200, "--epochs", 2, world=2)
        self.assertGreater(float(TEST.findall(output)[-1][2]), 80, output)

    def test_two_ranks_train_as_one_with_the_joined_batch(self):
        words = "--no-dropout", "--epochs", 2, "--train-samples", 96
        one = self.losses(*words, "--batch-size", 32)
        for wrap in ([], ["--auto-wrap"]):
            two = self.losses(*words, *wrap, "--batch-size", 16, world=2)
            self.assertEqual(len(two), 2)
            for ours, expected in zip(two, one, strict=True):
                self.assertAlmostEqual(ours, expected, delta=1e-5 * max(1.0, expected))

    def test_the_learning_rate_falls_after_the_first_epoch_already(self):
        output = self.train("--epochs", 3, "--gamma", 0)  # nothing is learnt with the rate 0
        first, second, third = (line for line in output.splitlines() if line.startswith("Test set: "))
        self.assertEqual([second, third], [first, first])

    def test_each_image_of_the_test_is_counted_once_where_ranks_have_unequal_shares(self):
        for samples in 7, 2:
            output = self.train("--test-samples", samples, "--test-batch-size", 1, world=3)
            self.assertEqual([counted for _, counted, _ in TEST.findall(output)], [str(samples)], output)

    def test_auto_wrap_makes_a_group_of_fc1_alone(self):
        whole, wrapped = self.train(), self.train("--auto-wrap")
        groups = re.compile(r"\(group '(\w+)':")
        self.assertEqual(len(groups.findall(whole)), 1, whole)
        self.assertEqual(groups.findall(wrapped), [groups.findall(whole)[0], "fc1"], wrapped)

    def test_a_network_with_batch_norm_trains(self):
        output = self.train("--model", "resnet18", "--train-samples", 32, "--test-samples", 10, world=2)
        self.assertRegex(output, r"layer4")
        self.assertEqual(len(TEST.findall(output)), 1, output)

    def test_trains_on_mnist_itself(self):
        if not SHARED_MNIST.is_dir():
            self.skipTest(f"there is no MNIST at {SHARED_MNIST}")
        output = self.train("--data", SHARED_MNIST, "--train-samples", 960, "--test-samples", 200, world=2)
        self.assertGreater(float(TEST.findall(output)[-1][2]), 50, output)


class Saving(Digits):
    def test_a_plain_libtorch_program_opens_the_model_of_two_ranks(self):
        self.train("--save-model", world=2)
        done = subprocess.run([OPEN_SAVED, "mnist_cnn.pt"], cwd=self.folder, capture_output=True, text=True,
                              timeout=TIMEOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("fc1.weight [128, 9216]\n", done.stdout)
        self.assertEqual(len(done.stdout.splitlines()), 8, done.stdout)
        self.assertFalse((self.folder / "mnist_cnn.pt.part").exists())

    def test_python_opens_the_model_of_two_ranks_as_that_of_one(self):
        python = ROOT / ".venv" / "bin" / "python"
        if not python.exists():
            self.skipTest("there is no .venv with Python's torch")
        words = "--no-dropout", "--train-samples", 32
        self.train(*words, "--batch-size", 32, "--save-model")
        (self.folder / "mnist_cnn.pt").rename(self.folder / "one.pt")
        self.train(*words, "--batch-size", 16, "--save-model", world=2)
        code = (
            "import torch\n"
            "one, two = torch.load('one.pt'), torch.load('mnist_cnn.pt')\n"
            "assert list(one) == list(two) and one['conv1.weight'].shape == (32, 1, 3, 3), list(one)\n"
            "for name in one: torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)\n"
            "net = torch.nn.Linear(9216, 128)\n"
            "net.load_state_dict({key: two['fc1.' + key] for key in ('weight', 'bias')})\n")
        done = subprocess.run([python, "-c", code], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_full_disk_is_one_sentence_and_leaves_no_file(self):
        def no_file_may_be_large():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        done = self.run_mnist("--save-model", preexec_fn=no_file_may_be_large)
        self.assert_one_sentence(done, 1, "cannot write mnist_cnn.pt: File too large")
        self.assertEqual(list(self.folder.iterdir()), [])


class Mistakes(Digits):
    def test_wrong_flags_are_one_sentence_and_status_2(self):
        for words in (["--epocs", 3], ["--epochs", 0], ["--epochs", "many"], ["--model", "vgg"], ["--gamma", 2],
                      ["--batch-size"], ["--seed", -1]):
            with self.subTest(words):
                self.assert_one_sentence(self.run_mnist(*words), 2, words[0])

    def test_wrong_data_is_one_sentence_and_status_1(self):
        self.assert_one_sentence(self.run_mnist("--data", "nowhere"), 1, "there is no folder nowhere")
        data = self.folder / "data"
        data.mkdir()
        self.assert_one_sentence(self.run_mnist("--data", data), 1, "has neither train-images-idx3-ubyte nor")
        for part in "train", "t10k":
            (data / f"{part}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7]))
            (data / f"{part}-images-idx3-ubyte").write_bytes(b"")
        self.assert_one_sentence(self.run_mnist("--data", data), 1, "train-images-idx3-ubyte is empty")


if __name__ == "__main__":
    MNIST, FSDPRUN, OPEN_SAVED = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
