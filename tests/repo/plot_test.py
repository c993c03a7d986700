"""What scripts/plot makes of metrics and traces.

Run by hand or by ctest; ends with 77 where matplotlib, which scripts/setup installs, is missing.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import plot  # noqa: E402

PYTHON = ROOT / ".venv" / "bin" / "python"
PNG = b"\x89PNG\r\n\x1a\n"


def event(rank, category, what, begin, end):
    return {"ph": "X", "pid": rank, "tid": 1, "name": what, "cat": category, "ts": begin, "dur": end - begin,
            "args": {"what": what, "group": ""}}


# Two steps of a rank: one of 100 us, in which 40 us are communicated and 10 us of these waited for.
def step_of(rank):
    return [event(rank, "compute", "optimizer step", -10, 0), event(rank, "compute", "forward", 0, 40),
            event(rank, "communication", "all_gather", 0, 20), event(rank, "communication", "all_gather", 10, 30),
            event(rank, "compute", "wait for all_gather", 25, 35), event(rank, "compute", "backward", 40, 90),
            event(rank, "communication", "reduce_scatter", 50, 60),
            event(rank, "compute", "wait for reduction", 55, 60), event(rank, "compute", "optimizer step", 90, 100)]


class Reading(unittest.TestCase):
    def test_a_step_is_from_the_end_of_an_optimizer_step_to_that_of_the_next(self):
        self.assertEqual(plot.steps_of(step_of(3), 3), [(0, 100)])
        self.assertEqual(plot.steps_of(step_of(3), 2), [])

    def test_hidden_is_what_is_communicated_while_nobody_waits_and_counts_once(self):
        # 30 us and 10 us are communicated, of which 5 us and 5 us are waited for.
        self.assertAlmostEqual(plot.hidden_share(step_of(0), (0, 100)), 0.75)
        self.assertIsNone(plot.hidden_share(step_of(0), (90, 100)))

    def test_lines_of_a_step_are_one_and_the_later_one_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "metrics.jsonl"
            path.write_text('{"step": 2, "loss": 5}\n{"step": 1, "loss": null}\n{"step": 2, "loss": 4}\n'
                            '{"step": 2, "validation_loss": 3}\n', encoding="utf-8")
            records = plot.read_metrics(path)
        self.assertEqual(records, [{"step": 1, "loss": None}, {"step": 2, "loss": 4, "validation_loss": 3}])
        self.assertEqual(plot.series(records, "loss"), ([2], [4]))

    def test_seconds_of_a_step_are_those_of_the_step_that_was_done_last_and_of_no_validation(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "metrics.jsonl"
            path.write_text('{"step": 1, "seconds": 4, "step_seconds": 4}\n'
                            '{"step": 1, "seconds": 9, "validation_loss": 3}\n', encoding="utf-8")
            self.assertEqual([record["seconds"] for record in plot.read_metrics(path)], [4])
            with path.open("a", encoding="utf-8") as file:
                file.write('{"step": 1, "seconds": 2, "step_seconds": 2}\n')
            self.assertEqual([record["seconds"] for record in plot.read_metrics(path)], [11])

    def test_a_log_without_the_seconds_of_a_step_tells_validations_and_steps_done_again_apart(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "metrics.jsonl"
            lines = ((1, 4, "loss"), (1, 9, "validation_loss"), (2, 10, "loss"), (3, 11, "loss"), (2, 12, "loss"))
            path.write_text("".join(f'{{"step": {step}, "seconds": {seconds}, "{name}": 1}}\n'
                                    for step, seconds, name in lines), encoding="utf-8")
            # The last line is of a run that was resumed and had taken 12 s until then.
            self.assertEqual([record["seconds"] for record in plot.read_metrics(path)], [4, 23, 11])

    def test_seconds_of_a_run_that_was_resumed_go_on(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "metrics.jsonl"
            path.write_text("".join(f'{{"step": {step}, "seconds": {seconds}}}\n'
                                    for step, seconds in ((1, 10), (2, 20), (3, 5), (4, 7))), encoding="utf-8")
            self.assertEqual([record["seconds"] for record in plot.read_metrics(path)], [10, 20, 25, 27])

    def test_what_is_held_is_the_sum_over_classes(self):
        records = [{"step": 1, "seconds": 9, "peak_bytes/rows": 1e6, "peak_bytes/whole": 2e6, "bytes/rows": 1e6},
                   {"step": 2}]
        self.assertEqual(plot.megabytes(records, "peak_bytes"), ([1], [3.0]))
        self.assertEqual(plot.megabytes(records, "bytes", "seconds"), ([9], [1.0]))


class Drawing(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def draw(self, *words):
        return subprocess.run([PYTHON, "-B", ROOT / "scripts" / "plot.py", *map(str, words)], capture_output=True,
                              text=True, check=False)

    def assert_draws(self, out, *words):
        done = self.draw(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(out.read_bytes().startswith(PNG))

    def test_several_runs_are_one_picture(self):
        for name in ("FSDP", "DDP"):
            lines = [{"step": step, "seconds": step, "loss": 1 / step, "tokens_per_second": 100.0, "bytes/rows": 1e6,
                      "peak_bytes/rows": 1e6} for step in (1, 2, 3)]
            (self.folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        out = self.folder / "runs.png"
        self.assert_draws(out, "runs", out, self.folder / "FSDP.jsonl", f"replicated={self.folder / 'DDP.jsonl'}")
        by_seconds = out.read_bytes()
        self.assert_draws(out, "runs", out, self.folder / "FSDP.jsonl", f"replicated={self.folder / 'DDP.jsonl'}",
                          "--over", "step")
        self.assertNotEqual(out.read_bytes(), by_seconds)  # the axis says so

    def test_a_step_of_several_ranks_is_one_picture(self):
        trace = self.folder / "trace.json"
        trace.write_text(json.dumps({"traceEvents": step_of(0) + step_of(1)}), encoding="utf-8")
        out = self.folder / "step.png"
        self.assert_draws(out, "step", out, trace)
        self.assertEqual(self.draw("step", out, trace, "--step", 2).returncode, 1)
        self.assert_draws(out, "step", out, trace, "--step", 1)

    def test_steps_are_counted_from_1(self):
        for number in (0, -1):
            done = self.draw("step", self.folder / "step.png", self.folder / "trace.json", f"--step={number}")
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"--step: expected a number from 1, found {number}", done.stderr)

    def test_two_runs_of_one_name_are_a_sentence(self):
        paths = [self.folder / name / "metrics.jsonl" for name in "ab"]
        for path in paths:
            path.parent.mkdir()
            path.write_text('{"step": 1, "loss": 1}\n', encoding="utf-8")
        out = self.folder / "runs.png"
        done = self.draw("runs", out, *paths)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "plot: two runs are called 'metrics': put NAME= before one\n"))
        self.assert_draws(out, "runs", out, paths[0], f"b={paths[1]}")

    def test_a_trace_without_a_whole_step_is_a_sentence(self):
        trace = self.folder / "trace.json"
        trace.write_text(json.dumps({"traceEvents": step_of(0)[1:]}), encoding="utf-8")
        done = self.draw("step", self.folder / "step.png", trace)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no whole step", done.stderr)


if __name__ == "__main__":
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", "import matplotlib"], capture_output=True,
                                             check=False).returncode != 0:
        print("matplotlib is missing: run scripts/setup")
        sys.exit(77)
    unittest.main()
