"""Tests that scripts/plot draws metrics of runs, a step of a trace, and a comparison."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / ".venv/bin/python"
sys.path.insert(0, str(ROOT / "scripts"))
import plot  # noqa: E402  pylint: disable=wrong-import-position

# A step of 100 us. Communication takes 40 us, and the step waits for 10 of them.
STEP = [("compute", "optimizer step", -10, 0), ("compute", "forward", 0, 40), ("communication", "all_gather", 0, 30),
        ("compute", "wait for all_gather", 25, 35), ("communication", "reduce_scatter", 50, 60),
        ("compute", "wait for reduction", 55, 60), ("compute", "optimizer step", 90, 100)]
TRACE = [{"ph": "X", "pid": rank, "tid": 1, "name": what, "cat": category, "ts": begin, "dur": end - begin,
          "args": {"what": what, "group": ""}} for rank in (0, 1) for category, what, begin, end in STEP]
# The run was resumed at step 2. The first line of that step no longer counts, and the clock began at 0 again.
RUN = [{"step": step, "seconds": seconds, "loss": 1 / seconds, "peak_bytes/rows": 1e6}
       for step, seconds in ((1, 4), (2, 9), (2, 2))]
CHOICES = {size: {"fsdp, sharded, Gloo": {"speed": [1.1, 1, 1.2], "megabytes": 300},
                  "PyTorch's DDP": {"speed": [1, 1, 1], "megabytes": 1000}} for size in ("9M", "69M")}


class Plot(unittest.TestCase):
    def test_draws_and_reads(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "a.jsonl").write_text("\n".join(map(json.dumps, RUN)), encoding="utf-8")
            (folder / "t.json").write_text(json.dumps({"traceEvents": TRACE}), encoding="utf-8")
            (folder / "c.json").write_text(json.dumps(CHOICES), encoding="utf-8")
            self.assertEqual([record["seconds"] for record in plot.read_metrics(folder / "a.jsonl")], [4, 11])
            for words, status, told in (("--help", 0, ""), ("runs runs.png a.jsonl b=a.jsonl", 0, ""),
                                        ("step step.png t.json", 0, ""),
                                        ("choices choices.png c.json", 0, ""),
                                        ("step x.png t.json --step 0", 2, "expected a number from 1, found 0"),
                                        ("runs x.png a.jsonl a.jsonl", 1, "two runs are called 'a'")):
                done = subprocess.run([PYTHON, "-B", ROOT / "scripts/plot.py", *words.split()], cwd=folder, text=True,
                                      capture_output=True, check=False)
                self.assertEqual((done.returncode, told in done.stderr), (status, True), done)
            for picture in ("runs.png", "step.png", "choices.png"):
                self.assertTrue((folder / picture).read_bytes().startswith(b"\x89PNG\r\n"))

    def test_hidden_is_what_is_communicated_while_nobody_waits(self):
        self.assertEqual(plot.steps_of(TRACE, 1), [(0, 100)])
        self.assertAlmostEqual(plot.hidden_share(TRACE[:len(STEP)], (0, 100)), 0.75)


if __name__ == "__main__":
    if subprocess.run([PYTHON, "-c", "import matplotlib"], check=False).returncode if PYTHON.exists() else True:
        print("matplotlib is missing: run scripts/setup")
        sys.exit(77)
    unittest.main()
