"""fsdprun on several nodes, all of them on this host."""

import socket
import unittest

from fsdprun_case import LIMIT_S, FsdprunTest, wait_until


class Nodes(FsdprunTest):
    def free_port(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def nodes(self, flags_of_nodes, *command):
        processes = [self.start(*flags, *command) for flags in flags_of_nodes]
        for process in processes:
            process.out, process.err = process.communicate(timeout=LIMIT_S)
        return processes

    def test_numbered_nodes_of_different_sizes(self):
        port = f"--master-port={self.free_port()}"
        results = self.nodes(
            [["--nnodes=2", "--node-rank=1", port, "--nproc-per-node=1"],
             ["--nnodes=2", "--node-rank=0", port, "--nproc-per-node=2"]],
            "sh", "-c", "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK")
        self.assertEqual([process.returncode for process in results], [0, 0])
        self.assertEqual(results[0].out, "[rank 2] 2/3 0/1 1\n")
        self.assertEqual(sorted(results[1].out.splitlines()),
                         ["[rank 0] 0/3 0/2 0", "[rank 1] 1/3 1/2 0"])

    def test_nodes_numbered_by_arrival(self):
        flags = ["--nnodes=3", "--rdzv-backend=c10d", "--rdzv-id=job",
                 f"--rdzv-endpoint=localhost:{self.free_port()}"]
        results = self.nodes([flags] * 3, "sh", "-c", "echo $RANK/$WORLD_SIZE")
        self.assertEqual([process.returncode for process in results], [0, 0, 0])
        self.assertEqual(sorted(process.out for process in results),
                         [f"[rank {r}] {r}/3\n" for r in range(3)])

    def test_a_failure_on_one_node_ends_the_others(self):
        port = f"--master-port={self.free_port()}"
        results = self.nodes([["--nnodes=2", f"--node-rank={node}", port] for node in (0, 1)],
                             "sh", "-c", "[ $RANK != 1 ] || exit 5; sleep 1000")
        self.assertEqual([process.returncode for process in results], [1, 5])
        self.assertIn("ended because of a failure on node 1: rank 1 exited with code 5",
                      results[0].err)

    def test_all_nodes_restart_together(self):
        port = f"--master-port={self.free_port()}"
        results = self.nodes(
            [["--nnodes=2", f"--node-rank={node}", port, "--max-restarts=1"] for node in (0, 1)],
            "sh", "-c",
            "echo $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT$RANK != 01 ]")
        self.assertEqual([process.returncode for process in results], [0, 0])
        self.assertEqual(results[0].out, "[rank 0] 0\n[rank 0] 1\n")

    def test_two_nodes_with_one_number(self):
        port = f"--master-port={self.free_port()}"
        host = self.start("--nnodes=3", "--node-rank=0", port, "true")
        results = [self.start("--nnodes=3", "--node-rank=1", port, "true") for _ in range(2)]
        self.assertTrue(wait_until(lambda: any(process.poll() == 1 for process in results)))
        loser = next(process for process in results if process.returncode == 1)
        self.assertIn("two nodes have --node-rank 1", loser.communicate()[1])
        for process in [host, *results]:
            process.terminate()
            process.communicate(timeout=LIMIT_S)


if __name__ == "__main__":
    unittest.main()
