"""Kills training ranks under fsdprun, or makes them fail. fsdprun must return their exit code and leave no process.

    FILE.py FSDPRUN TEST_PROGRAM [unittest arguments]
"""

import pathlib
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "launcher"))
PROGRAM = sys.argv.pop(2)

from fsdprun_case import FsdprunTest  # noqa: E402  (takes the first argument)


class Faults(FsdprunTest):
    def test_the_others_name_the_rank_that_is_killed(self):
        self.environment |= {"FSDP_TEST_CASE": "train_until_a_rank_dies", "PLACE": "backward", "VICTIM": "1"}
        result = self.run_ranks("--nproc-per-node=3", PROGRAM)
        self.assertEqual(result.returncode, 128 + signal.SIGKILL, result.err)
        self.assertEqual((result.out + result.err).count("PeerLost 1: "), 2)

    def test_a_mistake_ends_the_job_with_the_programs_code(self):
        self.environment["FSDP_TEST_CASE"] = "shard_models_that_differ"
        result = self.run_ranks("--nproc-per-node=2", PROGRAM)
        self.assertEqual(result.returncode, 1)
        for rank in (0, 1):
            self.assertIn(f"[fsdp rank {rank}/2]", result.err)
            self.assertIn(f"rank {rank} runs all_reduce(min) of 'fully_shard", result.err)


if __name__ == "__main__":
    unittest.main()
