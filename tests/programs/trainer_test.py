"""Tests that trainings that a signal or the loss of a rank ends resume bit for bit: the example of a trainer, and gpt.

    python3 trainer_test.py EXAMPLE GPT FSDPRUN
"""

import os
import re
import shutil
import signal
import sys
import unittest

from program_case import SMALL_GPT, TEXT, ProgramTest

EXAMPLE = GPT = FSDPRUN = ""
NEVER = 1_000_000  # so many steps or epochs that only a signal ends a run


class Runs(ProgramTest):
    def read_until(self, process, pattern):
        """Returns the match in the first line that has one."""
        seen = []
        for line in process.stdout:
            seen.append(line)
            if match := re.search(pattern, line):
                return match
        return self.fail("".join(seen))

    def send(self, process, number):
        """Sends a signal after which the process must end well, and returns the rest of its output."""
        process.send_signal(number)
        return self.end(process)

    def newest(self, run):
        return (self.folder / run / "latest").read_text(encoding="utf-8").strip()

    def assert_same_checkpoint(self, expected, found):
        """Compares parameters, moments, each rank's random state, options and the place in the data."""
        self.assertEqual(self.newest(found), self.newest(expected))
        files = sorted((self.folder / expected / self.newest(expected)).iterdir())
        self.assertGreater(len(files), 3)
        for path in files:
            other = self.folder / found / self.newest(found) / path.name
            self.assertEqual(other.read_bytes(), path.read_bytes(), path.name)


class Example(Runs):
    def train(self, run, epochs):
        return [EXAMPLE, self.folder / run, epochs]

    def epochs(self, run):
        """Returns the number of whole epochs in the newest checkpoint of the run."""
        return int(self.newest(run)[5:]) // 16

    def test_starts_its_ranks_and_learns(self):
        output = self.run_to_end(*self.train("run", 10))
        self.assertEqual(re.findall(r"^epoch (\d+) ends with step (\d+)$", output, re.MULTILINE),
                         [(str(n), str(16 * n)) for n in range(1, 11)])
        self.assertGreater(float(re.search(r"accuracy (\S+) %", output)[1]), 90, output)
        self.assertEqual(self.newest("run"), "step-000000000160")

    def test_a_signal_to_the_program_ends_it_with_a_checkpoint_and_the_next_start_goes_on_bit_for_bit(self):
        process = self.start(*self.train("broken", NEVER))
        for number in (signal.SIGTERM, signal.SIGINT):  # the second signal ends the run that resumed after the first
            self.read_until(process, r"epoch \d+ ends")
            self.assertNotIn("accuracy", self.send(process, number))
            epochs = NEVER if number == signal.SIGTERM else self.epochs("broken") + 2
            process = self.start(*self.train("broken", epochs))
        self.assertIn("accuracy", self.end(process))
        self.run_to_end(*self.train("whole", self.epochs("broken")))
        self.assert_same_checkpoint("whole", "broken")

    def test_runs_under_a_launcher_with_as_many_ranks_and_refuses_others(self):
        output = self.run_to_end(FSDPRUN, "--nproc_per_node", 2, *self.train("run", 1))
        self.assertRegex(output, r"\[rank 0\] accuracy")
        refused = self.start(FSDPRUN, "--nproc_per_node", 3, *self.train("run", 1))
        self.read_until(refused, "the option devices: expected 3, because 3 ranks are running, found 2")
        refused.communicate()
        self.assertNotEqual(refused.returncode, 0)


class Gpt(Runs):
    def setUp(self):
        super().setUp()
        self.text = self.folder / "text"
        self.text.write_text(TEXT, encoding="utf-8")

    def train(self, run, steps, *words, restarts=0):
        # With an endless warm-up, the learning rate does not depend on the number of steps.
        folder = self.folder / run
        flags = (f"--text {self.text} --batch 2 --dropout 0.1 --eval-every 0 --lr 100 --warmup {NEVER} --steps {steps} "
                 f"--save {folder} --save-every 10 --keep 1 --resume {folder}").split()
        script = f'echo $$ > {self.folder}/pid$RANK; exec "$@"'
        return [FSDPRUN, "--nproc_per_node", 2, "--max-restarts", restarts, "sh", "-c", script, "gpt", GPT,
                *SMALL_GPT, *flags, *words]

    def assert_goes_on_as_whole(self, run, *words):
        last = int(self.newest(run)[5:]) + 3
        output = self.run_to_end(*self.train(run, last, *words))
        self.assertRegex(output, rf"goes on after step {last - 3} from .*, saved by 2 ranks")
        self.run_to_end(*self.train("whole", last, *words))
        self.assert_same_checkpoint("whole", run)

    def test_a_signal_to_the_launcher_ends_the_step_saves_and_the_next_run_goes_on_bit_for_bit(self):
        for words in ([], ["--async-save", "--fp16", "--update-freq", 2]):
            with self.subTest(words):
                run = f"run{len(words)}"
                process = self.start(*self.train(run, NEVER, *words))
                self.read_until(process, rf"step 13/{NEVER} ")
                output = self.send(process, signal.SIGTERM)
                step = int(self.newest(run)[5:])
                self.assertGreaterEqual(step, 13)
                self.assertIn(f"a signal ended training after step {step}; to go on, use --resume {self.folder / run}",
                              output)
                self.assertNotIn("sample:", output)
                self.assert_goes_on_as_whole(run, *words)
                shutil.rmtree(self.folder / "whole")

    def kill_rank_1(self, number):
        os.kill(int((self.folder / "pid1").read_text(encoding="utf-8")), number)

    def test_a_signal_to_one_rank_ends_all(self):
        process = self.start(*self.train("run", NEVER))
        self.read_until(process, rf"step 3/{NEVER} ")
        self.kill_rank_1(signal.SIGTERM)
        self.assertIn("a signal ended training after step", self.end(process))

    def test_without_a_folder_to_save_to_a_signal_ends_it_at_once(self):
        command = self.train("run", NEVER)
        process = self.start(*command[:command.index("--save")])
        self.read_until(process, rf"step 3/{NEVER} ")
        process.send_signal(signal.SIGTERM)
        self.read_until(process, "SIGTERM was passed on")
        process.communicate()
        self.assertNotEqual(process.returncode, 0)

    def test_a_killed_rank_costs_no_bit_where_the_launcher_restarts(self):
        process = self.start(*self.train("run", NEVER, restarts=1))
        self.read_until(process, "step 20: saved in ")
        self.kill_rank_1(signal.SIGKILL)
        start = int(self.read_until(process, r"goes on after step (\d+) from")[1])
        self.assertGreaterEqual(start, 20)
        self.read_until(process, rf"step {start + 3}/{NEVER} ")
        self.send(process, signal.SIGTERM)
        self.assert_goes_on_as_whole("run")


if __name__ == "__main__":
    EXAMPLE, GPT, FSDPRUN = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
