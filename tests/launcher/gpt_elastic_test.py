"""Tests gpt under fsdprun --nnodes MIN:MAX: the remaining nodes of a job resume from its newest checkpoint.

    python3 gpt_elastic_test.py FSDPRUN GPT
"""

import os
import re
import signal
import sys
import unittest

from elastic_case import ElasticTest
from fsdprun_case import wait_until

GPT = sys.argv.pop(1)
TEXT = "Row, row, row your boat, gently down the stream.\n" * 40
# The training is endless, until the test lets it end three steps after the saved one.
TRAIN = ("echo $$ > $D/pid$RANK; touch $D/world$WORLD_SIZE.$RANK; steps=1000000; "
         "[ ! -e $D/end ] || { last=$(cat $D/run/latest); steps=$(expr ${last#step-} + 3); }; "
         f"exec {GPT} --text $D/text --dim 16 --layers 2 --heads 2 --seq 16 --batch 2 --sample 0 --eval-every 0 "
         "--steps $steps --save $D/run --save-every 10 --resume $D/run")


class GptElastic(ElasticTest):
    def newest(self):
        try:
            return int((self.path / "run" / "latest").read_text(encoding="utf-8")[5:])
        except FileNotFoundError:
            return 0

    def wait_for_progress(self):
        reached = self.newest() + 20
        self.assertTrue(wait_until(lambda: self.newest() >= reached), f"step {reached} is not reached")

    def test_a_lost_rank_and_a_lost_host_cost_the_steps_since_the_newest_checkpoint(self):
        (self.path / "text").write_text(TEXT, encoding="utf-8")
        first, second = self.start_nodes("1:2", 2, "--max-restarts=2", script=TRAIN)
        self.wait_for_world(2)
        self.wait_for_progress()
        os.kill(int((self.path / "pid1").read_text(encoding="utf-8")), signal.SIGKILL)
        self.wait_for_world(2)
        after_rank = self.newest()
        self.wait_for_progress()
        (self.path / "end").touch()
        second.kill()
        self.end(first, status=0)
        steps = [int(step) for step in re.findall(r"goes on after step (\d+) from .*, saved by", first.out)]
        self.assertGreaterEqual(len(steps), 2, first.out)
        self.assertEqual(steps, sorted(steps))
        self.assertGreater(steps[-1], after_rank)
        self.assertRegex(first.out, rf"goes on after step {steps[-1]} from .*, saved by 2 ranks\n(.*\n)*"
                                    rf".*step {steps[-1] + 3}: saved in (.*\n)*.*characters/s on 1 rank;")
        self.assertEqual(self.newest(), steps[-1] + 3)


if __name__ == "__main__":
    unittest.main()
