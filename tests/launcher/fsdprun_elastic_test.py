"""Tests of fsdprun with --nnodes MIN:MAX: nodes leave and join while the job runs. All nodes are on this host."""

import signal
import unittest

from elastic_case import RANK, ElasticTest


class Elastic(ElasticTest):
    def test_begins_at_once_when_as_many_are_there_as_can_be(self):
        nodes = self.start_nodes("1:3", 3, last_call=1000)
        self.wait_for_world(3)
        self.let_end(3)
        self.end(*nodes, status=0)
        self.assertEqual(nodes[0].out, "[rank 0] 0/3 0/3\n")
        self.assertIn("attempt 0 runs on 3 nodes (--nnodes 1:3, world size 3); this is node 0", nodes[0].err)

    def test_a_killed_launcher_ends_the_attempt_and_the_rest_meet_again(self):
        first = self.first_node("2:3", "--max-restarts=1", ranks=2)
        second, third = (self.node("2:3", "--max-restarts=1") for _ in range(2))
        self.wait_for_world(4)
        second.kill()
        self.wait_for_world(3)
        self.let_end(3)
        self.end(first, third, status=0)
        self.assertIn("[rank 1] 1/3 0/2\n", first.out)
        self.assertIn("[rank 2] 2/3 1/2\n", third.out)
        self.assertIn("launcher has been silent for 2 s", first.err)
        self.assertIn("starting all ranks again, restart 1 of 1", first.err)

    def test_failures_count_wherever_they_happen(self):
        attempt_fails = "[ $TORCHELASTIC_RESTART_COUNT != {} ] || exit {}; "
        first = self.first_node("1:2", "--max-restarts=1", script=attempt_fails.format(0, 3) + RANK, last_call=1000)
        second = self.node("1:2", "--max-restarts=1", script=attempt_fails.format(1, 4) + RANK)
        self.end(first, status=1)
        self.end(second, status=4)
        for node in (first, second):
            self.assertIn("restart 1 of 1", node.err)
        self.assertIn("rank 1 exited with code 4", first.err)

    def test_the_least_begin_after_the_last_call_and_one_that_comes_later_is_no_failure(self):
        first = self.first_node("1:2", script="echo attempt $TORCHELASTIC_RESTART_COUNT; " + RANK)
        self.wait_for_world(1)
        second = self.node("1:2")
        self.wait_for_world(2)
        self.let_end(2)
        self.end(first, second, status=0)
        self.assertEqual(first.out, "attempt 0\n0/1 0/1\n[rank 0] attempt 1\n[rank 0] 0/2 0/2\n")
        self.assertEqual(second.out, "[rank 1] 1/2 1/2\n")
        self.assertIn("1 more node joined: all nodes meet and start again", first.err)

    def test_of_nodes_too_many_one_takes_the_place_of_a_lost_one_and_one_ends_with_the_job(self):
        first, second = self.start_nodes("2:2", 2, "--max-restarts=1")
        self.wait_for_world(2)
        spares = [self.node("2:2", "--max-restarts=1") for _ in range(2)]
        for spare in spares:
            self.assertIn("the job runs on 2 nodes; this node waits until they meet again", spare.stderr.readline())
        second.kill()
        self.wait_for_world(2)
        self.let_end(2)
        self.end(first, *spares, status=0)
        left, needed = sorted(spares, key=lambda spare: spare.out)
        self.assertEqual((left.out, needed.out), ("", "[rank 1] 1/2 1/2\n"))
        self.assertIn("the job is over; this node was not needed", left.err)

    def test_too_few_nodes_are_left(self):
        first, second = self.start_nodes("2:3", 2, "--max-restarts=5", join=4)
        self.wait_for_world(2)
        second.kill()
        self.end(first, status=1)
        self.assertIn("expected at least 2 nodes within 4 s (join_timeout of --rdzv-conf), found 1", first.err)

    def test_too_few_nodes_come(self):
        first, second = self.first_node("3:4", join=4), self.node("3:4")
        self.end(first, second, status=1)
        self.assertIn("expected at least 3 nodes within 4 s", first.err)
        self.assertIn("node 0 has ended the job: expected at least 3 nodes", second.err)

    def test_the_loss_of_the_launcher_that_hosts_the_store_ends_the_job(self):
        first, second = self.start_nodes("1:2", 2, "--max-restarts=5")
        self.wait_for_world(2)
        first.kill()
        self.end(second, status=1)
        self.assertIn("the connection to node 0 broke: its launcher, which hosts the rendezvous store", second.err)

    def test_a_node_that_is_asked_to_end_leaves_and_the_rest_go_on(self):
        first, second = self.start_nodes("1:2", 2, "--max-restarts=1")
        self.wait_for_world(2)
        self.send(second, signal.SIGTERM, status=128 + signal.SIGTERM)
        self.let_end(1)
        self.end(first, status=0)
        self.assertIn("0/1 0/1\n", first.out)

    def test_a_launcher_that_was_stopped_joins_again(self):
        first, second = self.start_nodes("1:2", 2, "--max-restarts=1")
        self.wait_for_world(2)
        (self.path / "world1.0").unlink(missing_ok=True)  # The first node may have begun alone.
        second.send_signal(signal.SIGSTOP)
        self.wait_for_world(1)
        second.send_signal(signal.SIGCONT)
        self.let_end(2)
        self.end(first, second, status=0)
        self.assertIn("restart 1 of 1", first.err)
        self.assertIn("1 more node joined", first.err)


if __name__ == "__main__":
    unittest.main()
