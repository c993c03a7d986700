"""The programs of examples/, each on several numbers of ranks: what they print and the files that they write.

    python3 examples_test.py FOLDER_OF_PROGRAMS PYTHON_WITH_TORCH
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = pathlib.Path()
PYTHON = ""
TIMEOUT = 120


def start(*command, **variables):
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            errors="replace", env=os.environ | {"OMP_NUM_THREADS": "1"} | variables)


def launch(example, *arguments, flags, **variables):
    return start(PROGRAMS / "fsdprun", *flags, "--no-prefix", PROGRAMS / f"example_{example}", *arguments, **variables)


class Examples(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def end(self, process):
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
        self.assertEqual(process.returncode, 0, output)
        return output

    def run_ranks(self, ranks, example, *arguments):
        return self.end(launch(example, *arguments, flags=["--nproc_per_node", ranks]))

    def free_port(self):
        """That nobody else is given until the test ends, and that fsdprun can listen on."""
        holder = socket.socket()
        self.addCleanup(holder.close)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        return holder.getsockname()[1]

    def losses(self, output):
        """By step."""
        found = {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss ([^\s,]+)", output, re.MULTILINE)}
        self.assertGreater(len(found), 3, output)
        return found

    def assert_close(self, found, expected, relative=1e-3):
        self.assertEqual(found.keys(), expected.keys())
        for key, value in expected.items():
            self.assertAlmostEqual(found[key], value, delta=relative * abs(value) + 1e-6, msg=str(key))

    def assert_learns_alike(self, example, *arguments, falls_below):
        """With any number of ranks; what one printed."""
        output = self.run_ranks(1, example, *arguments)
        expected = self.losses(output)
        self.assertLess(expected[max(expected)], falls_below * expected[0])
        for ranks in (2, 4):
            self.assert_close(self.losses(self.run_ranks(ranks, example, *arguments)), expected)
        return output

    def test_linear_learns_alike_and_each_rank_has_its_rows(self):
        self.assert_learns_alike("linear", falls_below=0.01)
        for ranks in (1, 2, 4):
            output = self.run_ranks(ranks, "linear")
            rows = sorted(tuple(map(int, found)) for found in
                          re.findall(r"^rank (\d+) has (\d+) rows of 8, from row (\d+)$", output, re.MULTILINE))
            self.assertEqual([rank for rank, _, _ in rows], list(range(ranks)), output)
            self.assertLess(max(count for _, count, _ in rows), 9 if ranks == 1 else 8, output)
            self.assertEqual([first for _, _, first in rows], [sum(count for _, count, _ in rows[:rank]) for rank in range(ranks)])
            self.assertEqual(sum(count for _, count, _ in rows), 8, output)

    def test_linear_starts_its_ranks_itself(self):
        own = self.end(start(PROGRAMS / "example_linear", 2))
        self.assertEqual(sorted(own.splitlines()), sorted(self.run_ranks(2, "linear").splitlines()))

    def test_gan_begins_alike_and_its_points_get_where_they_belong(self):
        first = []
        for ranks in (1, 2, 4):
            output = self.run_ranks(ranks, "gan")
            first.append(self.losses(output)[0])
            mean = [float(word) for word in re.findall(r"points (\S+) (\S+)$", output, re.MULTILINE)[-1]]
            self.assertAlmostEqual(mean[0], 2, delta=0.3, msg=output)
            self.assertAlmostEqual(mean[1], -1, delta=0.3, msg=output)
        self.assertAlmostEqual(first[1], first[0], places=4)
        self.assertAlmostEqual(first[2], first[0], places=4)

    def test_lora_trains_and_saves_adapters_alone_which_go_on_from_an_unchanged_base(self):
        numbers = 3 * 2 * 64 * 4
        whole = {}
        for ranks in (1, 2, 4):
            file = self.folder / f"adapters{ranks}.safetensors"
            output = self.run_ranks(ranks, "lora", file)
            self.assertIn(f"trains {numbers} of {numbers + 3 * (64 * 64 + 64)} elements", output)
            losses = self.losses(output)
            self.assert_close(losses, whole.setdefault("losses", losses))
            self.assertLess(losses[200], 0.5 * losses[0])
            data = file.read_bytes()
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            shapes = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
            self.assertEqual(shapes, {f"{i}.{name}.weight": shape for i in range(3)
                                      for name, shape in (("down", [4, 64]), ("up", [64, 4]))})
        # Only the adapters were kept, so a base that had changed would show.
        again = self.losses(self.run_ranks(2, "lora", self.folder / "adapters4.safetensors"))
        self.assertAlmostEqual(again[0], whole["losses"][200], delta=0.05 * whole["losses"][200])

    def test_script_module_learns_alike_and_python_opens_what_it_writes(self):
        files = []
        expected = None
        for ranks in (1, 2, 4):
            files.append(self.folder / f"net{ranks}.pt")
            losses = self.losses(self.run_ranks(ranks, "script_module", files[-1]))
            expected = expected or losses
            self.assert_close(losses, expected)
            self.assertLess(losses[200], 0.1 * losses[0])
        if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode != 0:
            self.skipTest(f"{PYTHON} has no torch")
        read = f"""
import torch
nets = [torch.jit.load(file) for file in {list(map(str, files))}]
print({{name: list(value.shape) for name, value in nets[0].named_parameters()}})
x = torch.ones(3, 16)
print(all(torch.allclose(net(x, 2), nets[0](x, 2), atol=1e-3) for net in nets))
"""
        output = self.end(start(PYTHON, "-c", read))
        shapes = {f"{block}.{name}": shape for block in ("first", "second")
                  for name, shape in (("weight", [16, 16]), ("bias", [16]))}
        self.assertEqual(output.splitlines()[-2:], [str(shapes), "True"])

    def test_two_hosts_learn_as_one_rank_and_exchange_only_gradients(self):
        expected = self.losses(self.assert_learns_alike("two_hosts", falls_below=0.5))
        one = self.run_ranks(4, "two_hosts")
        self.assertIn("DeviceMesh(replicate=1, shard=4)", one)
        self.assertRegex(one, "between hosts 0")
        port = self.free_port()
        hosts = [launch("two_hosts", flags=["--nnodes", 2, "--node-rank", node, "--master-addr", "127.0.0.1",
                                            "--master-port", port, "--nproc-per-node", 2], FSDP_HOST=name)
                 for node, name in enumerate("ab")]
        output = [self.end(host) for host in hosts][0]
        self.assertIn("DeviceMesh(replicate=2, shard=2)", output)
        self.assert_close(self.losses(output), expected)

    def test_inference_is_the_same_with_any_number_of_ranks(self):
        folder = self.folder / "run"
        expected = None
        for ranks in (4, 1, 2):
            output = self.run_ranks(ranks, "sharded_inference", folder)
            self.assertIn(f"of 4 ranks, read by {ranks}", output)
            scores = dict(enumerate(float(word) for word in re.findall(r"-?\d+\.\d+(?:e[+-]\d+)?", output)))
            expected = expected or scores
            self.assertEqual(len(scores), 64)
            self.assert_close(scores, expected)


if __name__ == "__main__":
    PROGRAMS, PYTHON = pathlib.Path(sys.argv.pop(1)), sys.argv.pop(1)
    unittest.main()
