"""What ranks find, what fsdprun returns, and what it refuses."""

import os
import signal
import socket
import sys
import unittest

from fsdprun_case import FsdprunTest


class Environment(FsdprunTest):
    def test_every_rank_has_torchruns_variables(self):
        result = self.shell(
            3, "echo $RANK,$LOCAL_RANK,$WORLD_SIZE,$LOCAL_WORLD_SIZE,$GROUP_RANK,$GROUP_WORLD_SIZE,"
            "$ROLE_RANK,$ROLE_WORLD_SIZE,$ROLE_NAME,$MASTER_ADDR,$TORCHELASTIC_RESTART_COUNT,"
            "$TORCHELASTIC_MAX_RESTARTS,$TORCHELASTIC_RUN_ID,$TORCHELASTIC_USE_AGENT_STORE")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(
            sorted(result.out.splitlines()),
            [f"[rank {r}] {r},{r},3,3,0,1,{r},3,default,127.0.0.1,0,0,none,True" for r in range(3)])

    def test_ranks_share_a_port_on_which_the_launcher_listens(self):
        result = self.run_ranks(
            "--nproc-per-node=2", sys.executable, "-c",
            "import os, socket\n"
            "address = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
            "socket.create_connection(address).close()\n"
            "print(address[1])")
        self.assertEqual(result.returncode, 0, result.err)
        ports = {line.split()[-1] for line in result.out.splitlines()}
        self.assertEqual(len(ports), 1)

    def test_ranks_share_a_token_that_no_other_job_has(self):
        tokens = set()
        for _ in range(2):
            lines = self.shell(2, "echo $FSDP_JOB_TOKEN", "--no-prefix").out.split()
            self.assertEqual(len(set(lines)), 1)
            self.assertGreaterEqual(len(lines[0]), 64)
            tokens.update(lines)
        self.assertEqual(len(tokens), 2)
        self.environment["FSDP_JOB_TOKEN"] = "mine"
        self.assertEqual(self.shell(2, "echo $FSDP_JOB_TOKEN", "--no-prefix").out, "mine\nmine\n")

    def test_a_named_port_is_used(self):
        port = self.held_port()
        result = self.shell(1, "echo $MASTER_PORT", f"--master-port={port}")
        self.assertEqual(result.out, f"{port}\n")

    def test_variables_of_an_outer_launcher_are_replaced(self):
        self.environment.update(RANK="7", WORLD_SIZE="9", MASTER_PORT="1")
        self.assertEqual(self.shell(1, "echo $RANK $WORLD_SIZE").out, "0 1\n")

    def test_threads_are_limited_for_several_ranks_only(self):
        del self.environment["OMP_NUM_THREADS"]
        result = self.shell(2, "echo $OMP_NUM_THREADS", "--no-prefix")
        self.assertEqual(result.out, "1\n1\n")
        self.assertIn("OMP_NUM_THREADS", result.err)
        result = self.shell(1, "echo .$OMP_NUM_THREADS")
        self.assertEqual((result.out, result.err), (".\n", ""))

    def test_processes_per_node_can_be_counted(self):
        cpus = len(os.sched_getaffinity(0))
        result = self.shell("cpu", "echo $WORLD_SIZE", "--no-prefix")
        self.assertEqual(result.out, f"{cpus}\n" * cpus)
        self.assertEqual(self.shell("auto", "exit 0").returncode, 0)

    def test_flags_come_from_the_environment_too(self):
        self.environment["PET_NPROC_PER_NODE"] = "2"
        self.assertEqual(len(self.run_ranks("echo", "x").out.splitlines()), 2)


class Status(FsdprunTest):
    def test_success(self):
        self.assertEqual(self.shell(3, "exit 0").returncode, 0)

    def test_the_first_failing_ranks_exit_code(self):
        result = self.shell(3, "[ $RANK != 1 ] || exit 7; sleep 1000")
        self.assertEqual(result.returncode, 7)
        self.assertRegex(result.err, r"rank 1 \(pid \d+\) failed first: it exited with code 7")

    def test_a_killed_rank_is_named_with_its_signal(self):
        result = self.shell(2, "[ $RANK != 0 ] || kill -9 $$; sleep 1000")
        self.assertEqual(result.returncode, 128 + signal.SIGKILL)
        self.assertRegex(result.err, r"rank 0 \(pid \d+\) failed first: it was killed by SIGKILL")

    def test_the_last_lines_of_stderr_are_repeated(self):
        result = self.shell(2, "[ $RANK != 1 ] || { seq 1 30 >&2; exit 3; }; sleep 1000")
        summary = result.err[result.err.index("failed first"):]
        self.assertIn("  30\n", summary)
        self.assertIn("  21\n", summary)
        self.assertNotIn("  20\n", summary)

    def test_the_message_of_an_exception_comes_before_its_stack_frames(self):
        result = self.shell(2, "[ $RANK != 1 ] || { echo \"terminate called after throwing an instance of 'fsdp::Error'\n"
                               "  what():  out of eggs\nbuy some\nException raised from f at g.cpp:1\" >&2;"
                               "for i in $(seq 0 30); do echo \"frame #$i: f() (0x1 in g.so)\" >&2; done; exit 3; }")
        summary = result.err[result.err.index("failed first"):]
        self.assertRegex(summary, "stderr:\n[^\n]*what\\(\\):  out of eggs\n[^\n]*buy some\n")
        self.assertNotIn("frame #", summary)

    def test_survivors_have_as_long_as_a_diagnosis_takes(self):
        del self.environment["PET_PEER_GRACE"]
        result = self.shell(2, "[ $RANK != 1 ] || exit 3; sleep 12; echo lost rank 1 >&2; exit 1")
        self.assertIn("[rank 0] lost rank 1", result.err)
        self.assertIn("then rank 0 exited with code 1", result.err)

    def test_survivors_can_say_that_a_peer_is_gone(self):
        result = self.shell(2, "[ $RANK != 1 ] || exit 3; sleep 0.5; echo lost rank 1 >&2; exit 1")
        self.assertEqual(result.returncode, 3)
        self.assertIn("[rank 0] lost rank 1", result.err)
        self.assertIn("then rank 0 exited with code 1", result.err)

    def test_a_rank_that_ignores_sigterm_is_killed(self):
        result = self.shell(2, "[ $RANK != 1 ] || exit 3; trap '' TERM; while :; do sleep 1; done",
                            "--shutdown-timeout=1")
        self.assertEqual(result.returncode, 3)
        self.assertIn("then rank 0 was killed by SIGKILL", result.err)

    def test_one_rank_is_transparent(self):
        result = self.shell(1, "echo out; echo err >&2; exit 9")
        self.assertEqual((result.returncode, result.out), (9, "out\n"))
        self.assertTrue(result.err.startswith("err\n"))


class Restarts(FsdprunTest):
    def test_all_ranks_start_again_until_they_succeed(self):
        result = self.shell(
            2, "echo $RANK.$TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ]",
            "--max-restarts=3", "--no-prefix")
        self.assertEqual(result.returncode, 0, result.err)
        self.assertEqual(sorted(result.out.split()), ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"])

    def test_all_attempts_meet_at_one_port(self):
        result = self.shell(1, "echo $MASTER_PORT; exit 1", "--max-restarts=2")
        self.assertEqual(len(result.out.split()), 3)
        self.assertEqual(len(set(result.out.split())), 1)

    def test_the_last_failure_counts(self):
        result = self.shell(1, "exit $((5 + TORCHELASTIC_RESTART_COUNT))", "--max-restarts=1")
        self.assertEqual(result.returncode, 6)


class Refusals(FsdprunTest):
    def refused(self, status, message, *arguments):
        result = self.run_ranks(*arguments)
        self.assertEqual(result.returncode, status, result.err)
        self.assertEqual(result.out, "")
        lines = result.err.splitlines()
        self.assertEqual(len(lines), 1, result.err)
        self.assertRegex(lines[0], "^fsdprun: .*" + message)

    def test_bad_flags(self):
        self.refused(2, "unknown flag --bogus", "--bogus", "true")
        self.refused(2, "--nproc-per-node is 'many'", "--nproc-per-node=many", "true")
        self.refused(2, "--nproc-per-node is '0'", "--nproc-per-node=0", "true")
        self.refused(2, "no program", "--standalone")
        self.refused(2, "-m is not supported", "-m", "module")

    def test_a_program_that_is_not_there(self):
        self.refused(127, "in no folder of PATH", "no-such-program")
        self.refused(127, "there is no program", "./no-such-program")

    def test_a_program_that_cannot_be_executed(self):
        file = self.path / "text"
        file.write_text("plain text\n")
        self.refused(126, "not executable", str(file))
        file.chmod(0o755)
        self.refused(126, "cannot be executed: .*first line", str(file))
        self.refused(126, "is a folder", str(self.path))

    def test_an_occupied_port(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            port = holder.getsockname()[1]
            self.refused(1, f"port {port} of this host is occupied", f"--master-port={port}", "true")

    def test_a_host_that_is_not_this_one(self):
        self.refused(1, "not an address of this host", "--master-addr=192.0.2.1",
                     "--master-port=29555", "true")

    def test_a_log_folder_that_cannot_be_made(self):
        file = self.path / "file"
        file.write_text("")
        self.refused(1, "cannot be made", "-r", "3", f"--log-dir={file}/logs", "true")


class Help(FsdprunTest):
    def test_help_goes_to_stdout(self):
        result = self.run_ranks("--help")
        self.assertEqual((result.returncode, result.err), (0, ""))
        self.assertIn("Usage: fsdprun", result.out)


if __name__ == "__main__":
    unittest.main()
