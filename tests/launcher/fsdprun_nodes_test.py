"""fsdprun on several nodes, all of them on this host."""

import pathlib
import signal
import socket
import time
import unittest

from fsdprun_case import LIMIT_S, FsdprunTest, marked_processes, wait_until


class Nodes(FsdprunTest):
    def nodes(self, flags_of_nodes, *command):
        processes = [self.start(*flags, *command) for flags in flags_of_nodes]
        for process in processes:
            process.out, process.err = process.communicate(timeout=LIMIT_S)
        return processes

    def test_numbered_nodes_of_different_sizes(self):
        port = f"--master-port={self.held_port()}"
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
                 f"--rdzv-endpoint=localhost:{self.held_port()}"]
        results = self.nodes([flags] * 3, "sh", "-c", "echo $RANK/$WORLD_SIZE")
        self.assertEqual([process.returncode for process in results], [0, 0, 0])
        self.assertEqual(sorted(process.out for process in results),
                         [f"[rank {r}] {r}/3\n" for r in range(3)])

    def test_a_failure_on_one_node_ends_the_others(self):
        port = f"--master-port={self.held_port()}"
        results = self.nodes([["--nnodes=2", f"--node-rank={node}", port] for node in (0, 1)],
                             "sh", "-c", "[ $RANK != 1 ] || exit 5; sleep 1000")
        self.assertEqual([process.returncode for process in results], [1, 5])
        self.assertIn("ended because of a failure on node 1: rank 1 exited with code 5",
                      results[0].err)

    def test_all_nodes_restart_together(self):
        port = f"--master-port={self.held_port()}"
        results = self.nodes(
            [["--nnodes=2", f"--node-rank={node}", port, "--max-restarts=1"] for node in (0, 1)],
            "sh", "-c",
            "echo $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT$RANK != 01 ]")
        self.assertEqual([process.returncode for process in results], [0, 0])
        self.assertEqual(results[0].out, "[rank 0] 0\n[rank 0] 1\n")

    def start_two_nodes(self, heartbeat_timeout):
        self.environment["PET_HEARTBEAT_TIMEOUT"] = str(heartbeat_timeout)
        port = f"--master-port={self.held_port()}"
        processes = [self.start("--nnodes=2", f"--node-rank={node}", port, "sh", "-c",
                                "touch $D/$RANK; exec sleep 1000") for node in (0, 1)]
        self.wait_for_files("0", "1")
        return processes

    def test_a_stopped_launcher_of_another_node_is_found(self):
        for stopped in (0, 1):
            processes = self.start_two_nodes(2)
            processes[stopped].send_signal(signal.SIGSTOP)
            other = processes[1 - stopped]
            try:
                self.assertTrue(wait_until(lambda: other.poll() is not None, 30))
            finally:
                processes[stopped].send_signal(signal.SIGCONT)
            self.assertEqual(other.returncode, 1)
            self.assertIn(f"node {stopped}: its launcher has been silent for 2 s", other.communicate()[1])
            processes[stopped].communicate(timeout=LIMIT_S)
            self.assertEqual(processes[stopped].returncode, 1)
            for name in "01":
                (self.path / name).unlink()

    def test_a_killed_launcher_of_another_node_is_found(self):
        for killed in (0, 1):
            processes = self.start_two_nodes(2)
            processes[killed].kill()
            other = processes[1 - killed]
            self.assertTrue(wait_until(lambda: other.poll() is not None, 30))
            self.assertEqual(other.returncode, 1)
            self.assertIn(f"node {killed}: ", other.communicate()[1])
            processes[killed].communicate(timeout=LIMIT_S)
            for name in "01":
                (self.path / name).unlink()

    def test_signals_act_while_the_launcher_of_node_0_is_stopped(self):
        processes = self.start_two_nodes(1000)
        processes[0].send_signal(signal.SIGSTOP)
        time.sleep(1)  # For the other to have asked it something.
        processes[1].terminate()
        self.assertTrue(wait_until(lambda: processes[1].poll() is not None, 30))
        self.assertEqual(processes[1].returncode, 128 + signal.SIGTERM)
        processes[1].communicate()
        processes[0].kill()
        processes[0].communicate(timeout=LIMIT_S)
        self.assertTrue(wait_until(lambda: not marked_processes(self.marker), 10))  # its ranks end after it

    def listen_silently(self):
        """A listener whose connections the system accepts and nobody answers."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        return listener

    def test_a_listener_that_says_nothing_is_no_node_0(self):
        port = self.listen_silently().getsockname()[1]
        for rendezvous in (["--node-rank=1", f"--master-port={port}"],
                           ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]):
            process = self.start("--nnodes=2", "--heartbeat-timeout=2", *rendezvous, "true")
            has_ended = wait_until(lambda: process.poll() is not None, 30)
            process.kill()
            errors = process.communicate(timeout=LIMIT_S)[1]
            self.assertTrue(has_ended, rendezvous)
            self.assertEqual(process.returncode, 1)
            self.assertRegex(errors, rf"^fsdprun: .*127.0.0.1:{port} .* 2 s.*another port\n$")

    def test_signals_act_while_a_listener_says_nothing(self):
        listener = self.listen_silently()
        process = self.start("--nnodes=2", "--node-rank=1", f"--master-port={listener.getsockname()[1]}", "true")
        listener.settimeout(LIMIT_S)
        connections = [listener.accept() for _ in range(2)]  # It has looked who listens, and waits for an answer.
        process.terminate()
        self.assertTrue(wait_until(lambda: process.poll() is not None, 15))
        self.assertIn("SIGTERM while waiting for other nodes", process.communicate()[1])
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        for connection, _ in connections:
            connection.close()

    def blocks(self, process, number):
        """Whether fsdprun reads its signals itself by now."""
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
        return int(mask, 16) >> (number - 1) & 1 == 1

    def test_signals_act_while_nobody_listens(self):
        process = self.start("--nnodes=2", "--node-rank=1", f"--master-port={self.held_port()}", "true")
        self.assertTrue(wait_until(lambda: self.blocks(process, signal.SIGTERM)))
        process.terminate()
        self.assertTrue(wait_until(lambda: process.poll() is not None, 15))
        self.assertEqual(process.communicate()[1], "fsdprun: SIGTERM while waiting for other nodes\n")
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)

    def test_node_0_may_come_later_than_the_heartbeat_timeout(self):
        flags = ["--nnodes=2", f"--master-port={self.held_port()}", "--heartbeat-timeout=5"]
        late = self.start(*flags, "--node-rank=1", "true")
        self.assertFalse(wait_until(lambda: late.poll() is not None, 6))
        host = self.start(*flags, "--node-rank=0", "true")
        for process in (host, late):
            errors = process.communicate(timeout=LIMIT_S)[1]
            self.assertEqual((process.returncode, errors), (0, ""))

    def test_a_node_of_another_run_is_refused(self):
        port = f"--master-port={self.held_port()}"
        host = self.start("--nnodes=2", "--node-rank=0", port, "--rdzv-id=apples", "true")
        other = self.start("--nnodes=2", "--node-rank=1", port, "--rdzv-id=pears", "true")
        self.assertTrue(wait_until(lambda: other.poll() is not None, 30))
        self.assertEqual(other.returncode, 1)
        self.assertRegex(other.communicate()[1], "run 'apples' .*meet, and this one is of run 'pears'")
        host.terminate()
        host.communicate(timeout=LIMIT_S)

    def test_a_node_with_another_token_is_refused(self):
        port = f"--master-port={self.held_port()}"
        self.environment["FSDP_JOB_TOKEN"] = "apples"
        host = self.start("--nnodes=2", "--node-rank=0", port, "true")
        self.environment["FSDP_JOB_TOKEN"] = "pears"
        other = self.start("--nnodes=2", "--node-rank=1", port, "true")
        self.assertTrue(wait_until(lambda: other.poll() is not None, 30))
        self.assertEqual(other.returncode, 1)
        self.assertIn("does not have this job's token", other.communicate()[1])
        host.terminate()
        host.communicate(timeout=LIMIT_S)

    def test_a_node_without_the_token_is_refused(self):
        port = f"--master-port={self.held_port()}"
        self.environment["FSDP_JOB_TOKEN"] = "apples"
        host = self.start("--nnodes=2", "--node-rank=0", port, "true")
        del self.environment["FSDP_JOB_TOKEN"]
        other = self.start("--nnodes=2", "--node-rank=1", port, "true")
        self.assertTrue(wait_until(lambda: other.poll() is not None, 30))
        self.assertEqual(other.returncode, 1)
        self.assertIn("'none' with a token meet, and this one is of run 'none' without", other.communicate()[1])
        host.terminate()
        host.communicate(timeout=LIMIT_S)

    def test_nodes_share_a_token(self):
        flags = ["--nnodes=2", f"--master-port={self.held_port()}"]
        results = self.nodes([[*flags, "--node-rank=0"], [*flags, "--node-rank=1"]], "sh", "-c", "echo $FSDP_JOB_TOKEN")
        self.assertEqual(len({process.out.split()[-1] for process in results}), 1)
        self.assertGreaterEqual(len(results[0].out.split()[-1]), 64)

    def test_two_nodes_with_one_number(self):
        port = f"--master-port={self.held_port()}"
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
