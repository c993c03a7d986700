"""Kills training ranks under fsdprun, or makes them fail. fsdprun must return their exit code and leave no process.

    FILE.py FSDPRUN TEST_PROGRAM [unittest arguments]
"""

import json
import pathlib
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "launcher"))
PROGRAM = sys.argv.pop(2)

from fsdprun_case import FsdprunTest  # noqa: E402  (takes the first argument)


class Faults(FsdprunTest):
    def test_the_others_write_what_they_did_last_when_one_is_killed(self):
        record = self.path / "flight.json"
        self.environment |= {"FSDP_TEST_CASE": "train_until_a_rank_dies", "PLACE": "backward", "VICTIM": "1"}
        result = self.run_ranks("--nproc-per-node=3", f"--flight-recorder={record}", PROGRAM)
        self.assertEqual(result.returncode, 128 + signal.SIGKILL, result.err)
        self.assertEqual(sorted(path.name for path in self.path.iterdir()), ["flight.json.rank0", "flight.json.rank2"])
        for rank in (0, 2):
            file = f"{record}.rank{rank}"
            self.assertIn(f"This rank's last operations are in '{file}'", result.out + result.err)
            entries = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))["operations"]
            self.assertIn("reduce_scatter", [entry["operation"] for entry in entries])
            stages = [entry["stage"] for entry in entries if entry["operation"] == "backward"]
            self.assertEqual(stages[:2], ["done", "done"])

    def test_a_mistake_ends_the_job_with_the_programs_code(self):
        self.environment["FSDP_TEST_CASE"] = "shard_models_that_differ"
        result = self.run_ranks("--nproc-per-node=2", PROGRAM)
        self.assertEqual(result.returncode, 1)
        for rank in (0, 1):
            self.assertIn(f"[fsdp rank {rank}/2]", result.err)
            self.assertIn(f"rank {rank} runs all_reduce(min) of 'fully_shard", result.err)


if __name__ == "__main__":
    unittest.main()
