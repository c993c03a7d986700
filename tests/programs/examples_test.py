"""Runs the programs of examples/ on several numbers of ranks, and checks what they print and the files that they write.

    python3 examples_test.py FOLDER_OF_PROGRAMS PYTHON_WITH_TORCH
"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

from program_case import ProgramTest

PROGRAMS = pathlib.Path()
PYTHON = ""
RANKS = (1, 2, 3)
READ_NETS = """
import sys, torch
nets = [torch.jit.load(file) for file in sys.argv[1:]]
print({name: list(value.shape) for name, value in nets[0].named_parameters()})
x = torch.ones(3, 16)
print(all(torch.allclose(net(x, 2), nets[0](x, 2), atol=1e-3) for net in nets))
"""


class Examples(ProgramTest):
    def launch(self, example, *arguments, flags, **variables):
        return self.start(PROGRAMS / "fsdprun", *flags, "--no-prefix", PROGRAMS / f"example_{example}", *arguments,
                          **variables)

    def run_ranks(self, ranks, example, *arguments):
        return self.end(self.launch(example, *arguments, flags=["--nproc_per_node", ranks]))

    def losses(self, output):
        """Returns the losses in the output, keyed by step."""
        lines = re.findall(r"^step (\d+): loss ([^\s,]+)", output, re.MULTILINE)
        found = {int(step): float(loss) for step, loss in lines}
        self.assertGreater(len(found), 3, output)
        return found

    def assert_learns_alike(self, example, falls_below, arguments=lambda ranks: []):
        """Runs the example with all RANKS, and returns the outputs, keyed by number of ranks. The last loss must be
        below `falls_below` times the first one."""
        outputs = {ranks: self.run_ranks(ranks, example, *arguments(ranks)) for ranks in RANKS}
        expected = self.losses(outputs[1])
        self.assertLess(expected[max(expected)], falls_below * expected[0])
        for output in outputs.values():
            self.assert_close(self.losses(output), expected, 1e-3, 1e-6)
        return outputs

    def test_gan_learns_alike_and_its_points_get_where_they_belong(self):
        outputs = [self.run_ranks(ranks, "gan") for ranks in (1, 2)]
        for output in outputs:
            self.assert_close(self.losses(output), self.losses(outputs[0]), 0.01)
            mean = [float(word) for word in re.findall(r"points (\S+) (\S+)$", output, re.MULTILINE)[-1]]
            self.assert_close(mean, [2, -1], 0, 0.3)

    def test_lora_trains_and_saves_adapters_alone_which_go_on_from_an_unchanged_base(self):
        file = self.folder / "adapters"
        numbers = 3 * 2 * 64 * 4
        outputs = self.assert_learns_alike("lora", 0.5, arguments=lambda ranks: [f"{file}{ranks}"])
        for ranks, output in outputs.items():
            self.assertIn(f"trains {numbers} of {numbers + 3 * (64 * 64 + 64)} elements", output)
            data = pathlib.Path(f"{file}{ranks}").read_bytes()
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            shapes = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
            self.assertEqual(shapes, {f"{i}.{name}.weight": shape for i in range(3)
                                      for name, shape in (("down", [4, 64]), ("up", [64, 4]))})
        # The file does not contain the base weights, so a changed base would show.
        last = self.losses(outputs[1])[200]
        again = self.losses(self.run_ranks(2, "lora", f"{file}3"))
        self.assertAlmostEqual(again[0], last, delta=0.02 * last)

    def test_script_module_learns_alike_and_python_opens_what_it_writes(self):
        files = {ranks: str(self.folder / f"net{ranks}.pt") for ranks in RANKS}
        self.assert_learns_alike("script_module", 0.1, arguments=lambda ranks: [files[ranks]])
        if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode != 0:
            self.skipTest(f"{PYTHON} has no torch")
        output = self.run_to_end(PYTHON, "-c", READ_NETS, *files.values())
        shapes = {f"{block}.{name}": shape for block in ("first", "second")
                  for name, shape in (("weight", [16, 16]), ("bias", [16]))}
        self.assertEqual(output.splitlines()[-2:], [str(shapes), "True"])

    def test_two_hosts_learn_as_one_rank_and_exchange_only_gradients(self):
        one = self.assert_learns_alike("two_hosts", falls_below=0.01)[3]
        self.assertIn("DeviceMesh(replicate=1, shard=3)", one)
        self.assertEqual(set(self.sent_between_hosts(one)), {0}, one)
        meet = ["--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", self.held_port(), "--nproc-per-node", 2]
        hosts = [self.launch("two_hosts", flags=[*meet, "--node-rank", node], FSDP_HOST=name)
                 for node, name in enumerate("ab")]
        output = [self.end(host) for host in hosts][0]
        self.assertIn("DeviceMesh(replicate=2, shard=2)", output)
        self.assert_close(self.losses(output), self.losses(one), 1e-3, 1e-6)
        # The first rank has about half of the rows, and sums their gradients with those of the other host.
        parameters = 4 * (128 * 256 + 256 + 256 * 128 + 128)
        for sent in self.sent_between_hosts(output):
            self.assertAlmostEqual(sent * 1e6, parameters / 2, delta=0.05 * parameters)

    def sent_between_hosts(self, output):
        """Returns the MB that were sent between hosts, for each step in the output."""
        found = [float(sent) for sent in re.findall(r"between hosts (\S+) MB sent", output)]
        self.assertGreater(len(found), 3, output)
        return found

    def test_inference_is_the_same_with_any_number_of_ranks(self):
        folder = self.folder / "run"
        expected = None
        for ranks in (3, 1, 2):
            output = self.run_ranks(ranks, "sharded_inference", folder)
            self.assertIn(f"of 3 ranks, read by {ranks}", output)
            right, loss = re.search(r"^(\d+) of 48 are right, loss (\S+)$", output, re.MULTILINE).groups()
            found = {"right": int(right), "loss": float(loss)}
            self.assertGreater(found["right"], 40)
            expected = expected or found
            self.assert_close(found, expected, 1e-3, 2e-4)


if __name__ == "__main__":
    PROGRAMS, PYTHON = pathlib.Path(sys.argv.pop(1)).resolve(), sys.argv.pop(1)
    unittest.main()
