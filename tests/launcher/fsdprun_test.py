"""Tests of what ranks find, what fsdprun returns, and what it refuses."""

import os
import signal
import socket
import sys
import unittest

from fsdprun_case import FsdprunTest

KILLED = 128 + signal.SIGKILL
# Number of ranks, script of each rank, flags, fsdprun's status, lines of its output, patterns of its errors.
RUNS = {
    "success": (3, "exit 0", (), 0, [], ()),
    "the first failing rank's exit code": (
        3, "[ $RANK != 1 ] || exit 7; sleep 1000", (), 7, [],
        [r"rank 1 \(pid \d+\) failed first: it exited with code 7"]),
    "a killed rank is named with its signal": (
        2, "[ $RANK != 0 ] || kill -9 $$; sleep 1000", (), KILLED, [],
        [r"rank 0 \(pid \d+\) failed first: it was killed by SIGKILL"]),
    "survivors can say that a peer is gone": (
        2, "[ $RANK != 1 ] || exit 3; sleep 0.5; echo lost rank 1 >&2; exit 1", (), 3, [],
        [r"\[rank 0\] lost rank 1", "then rank 0 exited with code 1"]),
    "a rank that ignores SIGTERM is killed": (
        2, "[ $RANK != 1 ] || exit 3; trap '' TERM; while :; do sleep 1; done", ("--shutdown-timeout=1",), 3, [],
        ["then rank 0 was killed by SIGKILL"]),
    "the last lines of stderr are repeated": (
        2, "[ $RANK != 1 ] || { seq 1 30 >&2; exit 3; }; sleep 1000", (), 3, [],
        [r"failed first(?!(.|\n)*  20\n)(.|\n)*  21\n(.|\n)*  30\n"]),
    "the message of an exception comes before its stack frames": (
        2, "[ $RANK != 1 ] || { echo \"terminate called after throwing an instance of 'fsdp::Error'\n"
        "  what():  out of eggs\nbuy some\nException raised from f at g.cpp:1\" >&2; "
        "for i in $(seq 0 30); do echo \"frame #$i: f() (0x1 in g.so)\" >&2; done; exit 3; }", (), 3, [],
        [r"failed first(?!(.|\n)*frame #)(.|\n)*stderr:\n[^\n]*what\(\):  out of eggs\n[^\n]*buy some\n"]),
    "all ranks start again until they succeed": (
        2, "echo $RANK.$TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ]",
        ("--max-restarts=3", "--no-prefix"), 0, ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"], ()),
    "the last failure counts": (
        1, "exit $((5 + TORCHELASTIC_RESTART_COUNT))", ("--max-restarts=1",), 6, [], ()),
}
VARIABLES = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE "
             "ROLE_NAME MASTER_ADDR TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID "
             "TORCHELASTIC_USE_AGENT_STORE").split()
# Status, text of the one line of errors, and the arguments. D stands for the test's folder.
REFUSED = (
    (2, "unknown flag --bogus", "--bogus true"), (2, "--nproc-per-node is 'many'", "--nproc-per-node=many true"),
    (2, "--nproc-per-node is '0'", "--nproc-per-node=0 true"), (127, "not in any folder of PATH", "no-such-program"),
    (127, "there is no program", "./no-such-program"), (126, "not executable", "D/text"),
    (126, "cannot be executed: .*first line", "D/program"), (126, "is a folder", "D"),
    (126, "names the interpreter '/bin/sh' followed by a carriage return.*sed -i 's/\\\\r\\$//' D/of_windows",
     "D/of_windows"),
    (126, "names the interpreter '/no/shell'", "D/of_nobody"),
    (1, "not an address of this host", "--master-addr=192.0.2.1 --master-port=29555 true"),
    (1, "cannot be created", "-r 3 --log-dir=D/text/logs true"),
)


class Environment(FsdprunTest):
    def test_every_rank_has_torchruns_variables_in_place_of_an_outer_launchers(self):
        self.environment.update(RANK="7", WORLD_SIZE="9", MASTER_PORT="1")
        self.check(3, "echo " + ",".join(f"${name}" for name in VARIABLES),
                   out=[f"[rank {r}] {r},{r},3,3,0,1,{r},3,default,127.0.0.1,0,0,none,True" for r in range(3)])

    def test_ranks_share_a_port_on_which_the_launcher_listens(self):
        result = self.run_ranks(
            "--nproc-per-node=2", "--no-prefix", sys.executable, "-c", "import os, socket\n"
            "address = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
            "socket.create_connection(address).close()\nprint(address[1])")
        self.assertEqual(result.returncode, 0, result.err)
        self.assertEqual(len(set(result.out.split())), 1)
        port = self.held_port()
        self.check(1, "echo $MASTER_PORT", f"--master-port={port}", out=[str(port)])
        ports = self.check(1, "echo $MASTER_PORT; exit 1", "--max-restarts=2", status=1).out.split()
        self.assertEqual((len(ports), len(set(ports))), (3, 1))  # ports of all attempts

    def test_threads_are_limited_for_several_ranks_only(self):
        del self.environment["OMP_NUM_THREADS"]
        self.check(2, "echo $OMP_NUM_THREADS", "--no-prefix", out=["1", "1"], err=["OMP_NUM_THREADS"])
        self.assertEqual(self.check(1, "echo .$OMP_NUM_THREADS", out=["."]).err, "")

    def test_processes_per_node_can_be_counted(self):
        cpus = len(os.sched_getaffinity(0))
        self.check("cpu", "echo $WORLD_SIZE", "--no-prefix", out=[str(cpus)] * cpus)
        self.check("auto", "exit 0")

    def test_flags_come_from_the_environment_too(self):
        self.environment["PET_NPROC_PER_NODE"] = "2"
        self.assertEqual(len(self.run_ranks("echo", "x").out.splitlines()), 2)


class Status(FsdprunTest):
    def test_is_that_of_the_rank_that_failed_first_or_of_the_last_attempt(self):
        for what, (ranks, script, flags, status, out, err) in RUNS.items():
            with self.subTest(what):
                self.check(ranks, script, *flags, status=status, out=out, err=err)

    def test_survivors_have_as_long_as_a_diagnosis_takes(self):
        del self.environment["PET_PEER_GRACE"]
        self.check(2, "[ $RANK != 1 ] || exit 3; sleep 12; echo lost rank 1 >&2; exit 1", status=3,
                   err=[r"\[rank 0\] lost rank 1", "then rank 0 exited with code 1"])

    def test_one_rank_is_transparent(self):
        self.check(1, "echo out; echo err >&2; exit 9", status=9, out=["out"], err=[r"\Aerr\n"])


class Refusals(FsdprunTest):
    def refused(self, status, message, *arguments):
        result = self.run_ranks(*arguments)
        self.assertEqual((result.returncode, result.out), (status, ""), result.err)
        self.assertRegex(result.err, rf"\Afsdprun: .*{message}.*\n\Z")

    def test_are_one_line_and_a_status(self):
        for name, mode, text in (("text", 0o644, "plain text\n"), ("program", 0o755, "plain text\n"),
                                 ("of_windows", 0o755, "#! /bin/sh\r\ntrue\r\n"),
                                 ("of_nobody", 0o755, "#!/no/shell -e\ntrue\n")):
            (self.path / name).write_bytes(text.encode())
            (self.path / name).chmod(mode)
        for status, message, words in REFUSED:
            with self.subTest(words):
                self.refused(status, message.replace("D/", f"{self.path}/"), *(word.replace("D", str(self.path)) for word in words.split()))

    def test_an_occupied_port(self):
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
            self.refused(1, f"port {port} of this host is occupied", f"--master-port={port}", "true")

    def test_help_goes_to_stdout(self):
        result = self.run_ranks("--help")
        self.assertEqual((result.returncode, result.err), (0, ""))
        self.assertIn("Usage: fsdprun", result.out)


if __name__ == "__main__":
    unittest.main()
