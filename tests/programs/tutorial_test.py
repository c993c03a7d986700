"""Tests that the steps of docs/tutorial.md print the same losses, and do and contain what it says; tests what wrapping
costs.

    python3 tutorial_test.py STEPS WRAPPING FSDPRUN     (STEPS is the folder of the steps' programs)
"""

import functools
import json
import pathlib
import re
import struct
import sys
import unittest

from program_case import ProgramTest, run

STEPS = WRAPPING = FSDPRUN = ""
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "examples" / "tutorial"
EPOCH = re.compile(r"epoch (\d+)  loss (\d\S+)$", re.MULTILINE)
# The pattern matches the first lines of a memory report: the names of the columns, then current and peak bytes.
REPORT = re.compile(r"rank 0 of 2 +(.*)\n(?:\[rank 0\] )?all +(.*)")
UNITS = {"B": 1, "KiB": 1024, "MiB": 1024 ** 2}
SAME = 1e-4  # relative difference of losses that rounding may cause


def ranks_of(step, *words, as_hosts=False):
    each = ["sh", "-c", 'FSDP_HOST=host$RANK exec "$@"', "sh"] if as_hosts else []
    return [FSDPRUN, "--nproc_per_node", 2, *each, program(step), *words]


def program(step):
    return pathlib.Path(STEPS) / f"example_tutorial_{step}"


def losses(output):
    found = EPOCH.findall(output)
    return [int(epoch) for epoch, _ in found], [float(loss) for _, loss in found]


def peaks(output):
    """Returns the peak bytes of each class, rounded as they are printed."""
    names, cells = REPORT.search(output).groups()
    values = re.findall(r"/ (\S+) (\S+)", cells)
    return {name: float(number) * UNITS[unit] for name, (number, unit) in zip(names.split(), values, strict=True)}


@functools.cache
def plain():
    return losses(run(program("step0_plain")))[1]


class Tutorial(ProgramTest):
    def assert_losses(self, output, expected, epochs=(1, 2, 3, 4)):
        numbers, found = losses(output)
        self.assertEqual(numbers, list(epochs), output)
        self.assert_close(found, expected, SAME)

    def test_the_plain_loop_learns_to_count(self):
        self.assertEqual(len(plain()), 4)
        self.assertGreater(plain()[0], 1)
        self.assertLess(plain()[3], 0.5)

    def test_ranks_print_the_losses_of_the_plain_loop(self):
        for command in (ranks_of("step1_ranks"), ranks_of("step2_sharded"), [program("step2_sharded")]):
            with self.subTest(command):  # runs the last command alone
                self.assert_losses(run(*command), plain())

    def test_eight_ranks_in_four_dimensions_print_the_losses_of_the_plain_loop(self):
        self.assert_losses(run(FSDPRUN, "--nproc_per_node", 8, program("step7_axes")), plain())

    def test_each_step_holds_less_than_the_one_before(self):
        copied, shared, wrapped = (peaks(run(*ranks_of(step, as_hosts=True)))
                                   for step in ("step1_ranks", "step2_sharded", "step3_wrapped"))
        self.assertNotIn("whole", copied)
        for part in ("rows", "optimizer"):
            self.assertAlmostEqual(shared[part], copied[part] / 2, delta=0.04 * copied[part])
        self.assertAlmostEqual(shared["whole"], copied["rows"], delta=0.01 * copied["rows"])
        self.assertLess(wrapped["whole"], 0.6 * shared["whole"])
        self.assertNotIn("whole", peaks(run(*ranks_of("step2_sharded"))))  # the ranks share this memory

    def test_three_ways_of_wrapping_make_the_same_groups(self):
        def groups(way):
            output = run(*ranks_of("step3_wrapped", way))
            self.assert_losses(output, plain())
            return re.findall(r"^\[rank 0\] (\S+ +\d+) +\S+ MB +\S+ MB +kFullShard$", output, re.MULTILINE)

        calls, by_type, by_size = map(groups, ("calls", "type", "size"))
        self.assertEqual(len(calls), 5, calls)
        self.assertEqual(by_type, calls)
        self.assertEqual(by_size, calls)

    def test_a_training_goes_on_from_its_checkpoint_and_writes_one_file(self):
        run_folder = self.folder / "counting"
        self.assert_losses(run(*ranks_of("step4_checkpoint", run_folder, 2)), plain()[:2], epochs=(1, 2))
        self.assert_losses(run(*ranks_of("step4_checkpoint", run_folder, 4)), plain()[2:], epochs=(3, 4))
        content = run_folder.with_suffix(".safetensors").read_bytes()
        entries = json.loads(content[8:8 + struct.unpack("<Q", content[:8])[0]])
        self.assertEqual(entries["blocks.3.up.weight"]["shape"], [256, 64])
        self.assertEqual(len(set(entries) - {"__metadata__"}), 2 + 4 * 12 + 2 + 2)

    def test_low_precision_is_near_and_checkpointed_activations_are_few(self):
        _, found = losses(run(*ranks_of("step5_memory", self.folder / "counting")))
        self.assertNotEqual(found, plain())
        self.assert_close(found, plain(), 0.02)
        # The trainer gets the same settings as options, starts its ranks itself, and resumes where it was.
        trainer = program("step6_trainer"), self.folder / "trainer"
        self.assert_losses(run(*trainer, 2), found[:2], epochs=(1, 2))
        self.assert_losses(run(*trainer, 4), found[2:], epochs=(3, 4))


class Page(unittest.TestCase):
    def test_quotes_lines_of_the_steps_in_their_order(self):
        page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```cpp (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        self.assertEqual({name for name, _ in blocks},
                         {path.name for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h")})
        for name, block in blocks:
            left = iter([line.strip() for line in (SOURCES / name).read_text(encoding="utf-8").splitlines()])
            for line in map(str.strip, block.splitlines()):
                if line not in ("", "// ..."):
                    self.assertTrue(any(line == other for other in left), f"{name}: {line}")


class Wrapping(unittest.TestCase):
    def test_of_a_hundred_layers_all_forty_or_two_are_whole(self):
        rows = [line.strip("| ").split(" | ") for line in run(WRAPPING, 16, 3).splitlines()[2:]]
        found = {(backend, groups): (float(layers), int(gathers), int(reductions))
                 for backend, groups, _, layers, gathers, reductions, _ in rows}
        for groups, layers, gathers, reductions in (("1 of 100", 100, 1, 1), ("5 of 20", 40, 10, 5),
                                                    ("100 of 1", 2, 200, 100)):
            with self.subTest(groups):
                self.assertAlmostEqual(found["gloo", groups][0], layers, delta=0.01 * layers)
                self.assertLessEqual(found["gloo", groups][1], gathers)
                self.assertEqual(found["gloo", groups][2], reductions)
                self.assertEqual(found["shm", groups], (0, 0, reductions))


if __name__ == "__main__":
    STEPS, WRAPPING, FSDPRUN = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
