"""Tests of fsdprun on several nodes, all of them on this host."""

import pathlib
import signal
import socket
import time
import unittest

from fsdprun_case import LIMIT_S, FsdprunTest, wait_until


class Nodes(FsdprunTest):
    def setUp(self):
        super().setUp()
        self.port = f"--master-port={self.held_port()}"

    def start_node(self, number, *command, nodes=2):
        return self.start(f"--nnodes={nodes}", f"--node-rank={number}", self.port, *command)

    def finish(self, *processes):
        """Waits for processes that must end well, and returns their outputs."""
        self.end(*processes, status=0)
        return [process.out for process in processes]

    def test_numbered_nodes_of_different_sizes(self):
        script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK"
        second, first = self.finish(*(self.start_node(number, f"--nproc-per-node={2 - number}", "sh", "-c", script)
                                      for number in (1, 0)))
        self.assertEqual(second, "[rank 2] 2/3 0/1 1\n")
        self.assertEqual(sorted(first.splitlines()), ["[rank 0] 0/3 0/2 0", "[rank 1] 1/3 1/2 0"])

    def test_nodes_numbered_by_arrival(self):
        flags = ["--nnodes=3", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=localhost:{self.held_port()}"]
        found = self.finish(*(self.start(*flags, "sh", "-c", "echo $RANK/$WORLD_SIZE") for _ in range(3)))
        self.assertEqual(sorted(found), [f"[rank {r}] {r}/3\n" for r in range(3)])

    def test_a_failure_on_one_node_ends_the_others(self):
        script = "[ $RANK != 1 ] || exit 5; sleep 1000"
        first, second = (self.start_node(number, "sh", "-c", script) for number in (0, 1))
        self.assert_ends(first, 1, "ended because of a failure on node 1: rank 1 exited with code 5")
        self.assert_ends(second, 5)

    def test_all_nodes_restart_together(self):
        script = "echo $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT$RANK != 01 ]"
        found = self.finish(*(self.start_node(number, "--max-restarts=1", "sh", "-c", script) for number in (0, 1)))
        self.assertEqual(found[0], "[rank 0] 0\n[rank 0] 1\n")

    def start_two_nodes(self, heartbeat_timeout):
        self.environment["PET_HEARTBEAT_TIMEOUT"] = str(heartbeat_timeout)
        processes = [self.start_node(number, "sh", "-c", "touch $D/$RANK; exec sleep 1000") for number in (0, 1)]
        self.take_files("0", "1")
        return processes

    def test_a_stopped_or_killed_launcher_of_another_node_is_found(self):
        for lost in (0, 1):
            for number, said in ((signal.SIGSTOP, "its launcher has been silent for 2 s"), (signal.SIGKILL, "")):
                processes = self.start_two_nodes(2)
                processes[lost].send_signal(number)
                try:
                    self.assert_ends(processes[1 - lost], 1, f"node {lost}: {said}")
                finally:
                    processes[lost].send_signal(signal.SIGCONT)
                self.end(processes[lost], status=-number if number == signal.SIGKILL else 1)

    def test_signals_act_while_the_launcher_of_node_0_is_stopped(self):
        first, second = self.start_two_nodes(1000)
        first.send_signal(signal.SIGSTOP)
        time.sleep(1)  # gives the other node time to send a request
        second.terminate()
        self.assert_ends(second, 128 + signal.SIGTERM)
        self.send(first, signal.SIGKILL)
        self.assert_all_end()

    def listen_silently(self):
        """Returns a listener whose connections the system accepts and nobody answers, and its port."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        return listener, listener.getsockname()[1]

    def test_a_listener_that_says_nothing_is_no_node_0(self):
        _, port = self.listen_silently()
        for rendezvous in (["--node-rank=1", f"--master-port={port}"],
                           ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]):
            process = self.start("--nnodes=2", "--heartbeat-timeout=2", *rendezvous, "true")
            self.assert_ends(process, 1)
            self.assertRegex(process.err, rf"^fsdprun: .*127.0.0.1:{port} .* 2 s.*a different port\n$")

    def test_signals_act_while_a_listener_says_nothing(self):
        listener, port = self.listen_silently()
        process = self.start("--nnodes=2", "--node-rank=1", f"--master-port={port}", "true")
        listener.settimeout(LIMIT_S)
        connections = [listener.accept() for _ in range(2)]  # The node waits for an answer.
        process.terminate()
        self.assert_ends(process, 128 + signal.SIGTERM, "SIGTERM while waiting for other nodes", seconds=15)
        for connection, _ in connections:
            connection.close()

    def blocks(self, process, number):
        """Returns true if fsdprun already reads its signals itself."""
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
        return int(mask, 16) >> (number - 1) & 1 == 1

    def test_signals_act_while_nobody_listens(self):
        process = self.start_node(1, "true")
        self.assertTrue(wait_until(lambda: self.blocks(process, signal.SIGTERM)))
        process.terminate()
        self.assert_ends(process, 128 + signal.SIGTERM, seconds=15)
        self.assertEqual(process.err, "fsdprun: ended by SIGTERM while waiting for other nodes\n")

    def test_node_0_may_come_later_than_the_heartbeat_timeout(self):
        late = self.start_node(1, "--heartbeat-timeout=2", "true")
        self.assertFalse(wait_until(lambda: late.poll() is not None, 3))
        host = self.start_node(0, "--heartbeat-timeout=2", "true")
        self.finish(host, late)
        self.assertEqual((host.err, late.err), ("", ""))

    def test_a_node_of_another_run_is_refused(self):
        host, stranger = (self.start_node(number, f"--rdzv-id={run}", "true")
                          for number, run in enumerate(("apples", "pears")))
        self.assert_ends(stranger, 1)
        self.assertRegex(stranger.err, "run 'apples' meet, but this node belongs to run 'pears'")
        self.send(host, signal.SIGTERM)

    def test_two_nodes_with_one_number(self):
        host, *both = (self.start_node(number, "true", nodes=3) for number in (0, 1, 1))
        self.assertTrue(wait_until(lambda: any(process.poll() == 1 for process in both)))
        winner, loser = sorted(both, key=lambda process: process.returncode == 1)
        self.assert_ends(loser, 1, "two nodes have --node-rank 1")
        for process in (host, winner):
            self.send(process, signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
