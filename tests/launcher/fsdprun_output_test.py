"""Tests of what fsdprun does with the ranks' output and input."""

import fcntl
import os
import pathlib
import pty
import signal
import struct
import subprocess
import termios
import unittest

from fsdprun_case import FsdprunTest, marked_processes, wait_until

# Number of ranks, script of each rank, flags, lines of the output and of the errors in any order.
SHOWN = (
    (2, "echo out; echo err >&2", (), ["[rank 0] out", "[rank 1] out"], ["[rank 0] err", "[rank 1] err"]),
    (2, "head -c 200000 /dev/zero | tr '\\0' x; echo y", (), [f"[rank {r}] {200000 * 'x'}y" for r in (0, 1)], []),
    (2, "printf x", (), ["[rank 0] x", "[rank 1] x"], []),  # fsdprun completes an unfinished last line
    (1, "echo x", ("--prefix",), ["[rank 0] x"], []),
    (2, "echo x", ("--no-prefix",), ["x", "x"], []),
    (3, "echo x", ("--local-ranks-filter=0,2",), ["[rank 0] x", "[rank 2] x"], []),
    (4, "i=0; while [ $i -lt 200 ]; do printf 'aaaaaaaa'; printf 'bbbbbbbb\\n'; i=$((i+1)); done", (),
     [f"[rank {rank}] aaaaaaaabbbbbbbb" for rank in range(4) for _ in range(200)], []),
)
# Flags that write files, lines that are still shown, and the files by rank and stream.
LOGGED = (
    ("-r", "1", [], ["[rank 0] err", "[rank 1] err"], {"0/stdout": "out\n", "1/stdout": "out\n"}),
    ("-t", "0:3,1:2", ["[rank 0] out", "[rank 1] out"], ["[rank 0] err", "[rank 1] err"],
     {"0/stdout": "out\n", "0/stderr": "err\n", "1/stderr": "err\n"}),
)


class Output(FsdprunTest):
    def test_lines_are_prefixed_and_streams_stay_apart(self):
        for ranks, script, flags, out, err in SHOWN:
            with self.subTest(script):
                result = self.check(ranks, script, *flags, out=out)
                self.assertEqual(sorted(result.err.splitlines()), err)

    def test_progress_lines_keep_their_returns_get_prefixes_and_arrive_at_once(self):
        process = self.start("--nproc-per-node=2", "sh", "-c",
                             "[ $RANK = 1 ] || printf '1 %%\\r2 %%\\r3 %%\\n50 %%\\r'; sleep 1000", text=False)
        expected, found = b"[rank 0] 1 %\r[rank 0] 2 %\r[rank 0] 3 %\n[rank 0] 50 %\r", b""
        while len(found) < len(expected):
            found += os.read(process.stdout.fileno(), 100)
        self.assertEqual(found, expected)
        self.send(process, signal.SIGTERM)

    def test_the_rest_of_a_line_that_another_rank_broke_into_has_a_prefix(self):
        # Rank 0 begins a line that is too long to be kept until its end.
        script = ("wait_for() { while [ ! -e $D/$1 ]; do sleep 0.05; done; }\n"
                  "[ $RANK = 0 ] || { wait_for begun; echo line; exit; }\n"
                  "head -c 17000000 /dev/zero | tr '\\0' x; touch $D/begun; wait_for broken; echo y")
        process = self.start("--nproc-per-node=2", "sh", "-c", script)
        begun, line = process.stdout.readline(), process.stdout.readline()
        (self.path / "broken").touch()
        rest = process.stdout.readline()
        self.end(process, status=0)
        self.assertEqual((begun.strip("x\n"), line, rest.replace("x", "")),
                         ("[rank 0] ", "[rank 1] line\n", "[rank 0] y\n"))

    def on_terminal(self, *command):
        """Runs fsdprun on a terminal with 100 columns, and returns what it writes there."""
        leader, follower = pty.openpty()
        self.addCleanup(os.close, leader)
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        process = self.start(*command, stdout=follower)
        os.close(follower)
        self.end(process, status=0)
        return os.read(leader, 100)

    def test_one_rank_has_the_terminal(self):
        self.assertEqual(self.on_terminal("sh", "-c", "[ -t 1 ] && echo yes"), b"yes\r\n")

    def test_ranks_of_a_launcher_on_a_terminal_know_its_columns(self):
        script = "echo ${FSDP_TERMINAL_COLUMNS-none} >$D/columns.$RANK; echo"
        self.on_terminal("--nproc-per-node=2", "--redirects=1:1", "sh", "-c", script)
        self.assertEqual([(self.path / f"columns.{rank}").read_text() for rank in (0, 1)], ["84\n", "none\n"])
        self.check(1, script)
        self.assertEqual((self.path / "columns.0").read_text(), "none\n")

    def test_one_rank_reads_what_the_launcher_was_given_and_several_nothing(self):
        (self.path / "input").write_text("hello\n")
        for ranks, read in ((1, "hello\n"), (2, "")):
            with (self.path / "input").open() as text:
                self.assertEqual(self.run_ranks(f"--nproc-per-node={ranks}", "cat", stdin=text).out, read)

    def logs(self, folder, attempt=0):
        """Returns the contents of the log files, keyed by rank and stream."""
        files = folder.glob(f"job_*/attempt_{attempt}/*/*.log")
        return {f"{file.parent.name}/{file.stem}": file.read_text() for file in files}

    def test_streams_are_redirected_to_files_or_teed(self):
        for flag, streams, out, err, files in LOGGED:
            result = self.check(2, "echo out; echo err >&2", flag, streams, f"--log-dir={self.path}/{flag}",
                                "--rdzv-id=job", out=out)
            self.assertEqual(sorted(line for line in result.err.splitlines() if "err" in line), err)
            self.assertEqual(self.logs(self.path / flag), files)

    def test_each_attempt_has_its_own_files(self):
        self.check(1, "echo $TORCHELASTIC_RESTART_COUNT; exit 1", "-r", "3", "--max-restarts=1",
                   f"--log-dir={self.path}", "--rdzv-id=job", status=1)
        for attempt in (0, 1):
            self.assertEqual(self.logs(self.path, attempt), {"0/stdout": f"{attempt}\n", "0/stderr": ""})

    def test_files_and_their_folders_are_private_and_the_name_of_a_job_leads_nowhere_else(self):
        previous = os.umask(0)
        try:
            self.check(1, "echo out", "-r", "3", f"--log-dir={self.path}/new", "--rdzv-id=../../up")
        finally:
            os.umask(previous)
        job, = (self.path / "new").iterdir()
        self.assertEqual(job.name.rsplit("_", 1)[0], "_.._.._up")
        paths = [job, *job.rglob("*")]
        self.assertEqual(len(paths), 5)
        for path in paths:
            self.assertEqual(path.stat().st_mode & 0o777, 0o700 if path.is_dir() else 0o600, path)

    def test_the_default_folder_is_this_users_own(self):
        self.environment["TMPDIR"] = self.folder.name
        self.check(1, "echo out", "-r", "1")
        (folder,) = self.path.glob("fsdprun*")
        self.assertEqual(folder.stat().st_mode & 0o777, 0o700)
        folder.chmod(0o777)
        self.check(1, "touch $D/ran", "-r", "1", status=1, err=["other users may access it"])
        self.assertFalse((self.path / "ran").exists())

    def test_without_a_folder_for_temporary_files_none_are_written_elsewhere(self):
        self.environment["TMPDIR"] = f"{self.path}/missing"
        result = self.run_ranks("-r", "3", "touch", f"{self.path}/ran", cwd=self.path)
        self.assertEqual(result.returncode, 1, result.err)
        self.assertIn(f"(TMPDIR is {self.path}/missing); set TMPDIR to a different folder", result.err)
        self.assertEqual(list(self.path.iterdir()), [])

    def test_a_file_that_a_full_disk_does_not_take_is_said_and_a_failure(self):
        full = ("sh", "-c", "ulimit -f 8; exec \"$@\"", "sh")
        process = self.start("-r", "1", f"--log-dir={self.path}", "sh", "-c", "yes | head -c 100000; echo goes on >&2",
                             prefix=full)
        self.end(process, status=1)
        self.assertRegex(process.err, "fsdprun: cannot write .*/attempt_0/0/stdout.log: File too large. Raise the limit "
                                      "on the size of files .ulimit -f.. What the rank prints from now on is missing "
                                      "from this file\n")
        self.assertIn("goes on", process.err)

    def test_a_link_in_place_of_the_folder_is_refused(self):
        (self.path / "elsewhere").mkdir(mode=0o700)
        self.environment["TMPDIR"] = self.folder.name
        for name, flags in ((f"fsdprun-{os.geteuid()}", []), ("logs", [f"--log-dir={self.path}/logs"]),
                            ("logs", [f"--log-dir={self.path}/logs/"])):
            link = self.path / name
            if not link.is_symlink():
                link.symlink_to(self.path / "elsewhere")
            self.check(1, "touch $D/ran", "-r", "3", *flags, status=1, err=["is a link, which fsdprun does not follow"])
        self.assertEqual(list((self.path / "elsewhere").iterdir()), [])
        self.assertFalse((self.path / "ran").exists())

    def test_a_link_in_place_of_a_file_is_refused(self):
        self.check(1, "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && cd $D/job_* && mkdir -p attempt_1/0 && "
                   "ln -s $D/target attempt_1/0/stdout.log; exit 3", "-r", "1", "--max-restarts=1",
                   f"--log-dir={self.path}", "--rdzv-id=job", status=1, err=["stdout.log cannot be created"])
        self.assertFalse((self.path / "target").exists())

    def test_redirected_errors_are_still_summed_up(self):
        self.check(2, "echo the reason >&2; exit 4", "-r", "3", f"--log-dir={self.path}", status=4,
                   err=["  the reason\n"])

    def test_a_closed_reader_ends_the_ranks(self):
        process = self.start("--nproc-per-node=2", "yes")
        process.stdout.read(1000)
        process.stdout.close()
        self.assertTrue(wait_until(lambda: process.poll() is not None))
        process.stderr.close()
        self.assertNotEqual(process.returncode, 0)

    def test_output_that_a_full_disk_does_not_take_is_said_and_a_failure(self):
        for command in "echo", "yes":
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = self.run_ranks("--nproc-per-node=2", command, stdout=full)
            self.assertEqual(result.returncode, 1, result.err)
            self.assertIn("fsdprun: cannot write what the ranks print: No space left on device. Free some space\n", result.err)


class UnreadOutput(FsdprunTest):
    """Tests of output that nobody reads, and of a terminal that Ctrl-S has stopped."""

    def start_flood(self, **options):
        """Starts a rank 0 that prints without end, and a rank 1 that ends when the test lets it."""
        process = self.start("--nproc-per-node=2", "--shutdown-timeout=2", "sh", "-c",
                             "[ $RANK = 1 ] || exec yes; while [ ! -e $D/go ]; do sleep 0.05; done; exit 3", **options)
        self.assertTrue(wait_until(self.flood_is_blocked))
        return process

    def flood_is_blocked(self):
        """Returns true if the rank that prints waits for a reader of its pipe."""
        for pid in marked_processes(self.marker):
            folder = pathlib.Path(f"/proc/{pid}")
            try:
                if (folder / "comm").read_text() == "yes\n":
                    return "pipe" in (folder / "wchan").read_text()
            except OSError:
                pass
        return False

    def assert_ended(self, process, status):
        self.assertTrue(wait_until(lambda: process.poll() is not None, 30))
        self.assertEqual(process.returncode, status)

    def test_a_rank_that_ends_is_noticed_though_the_errors_may_go_unread_too(self):
        for options, said in (({}, "rank 1"), ({"stderr": subprocess.STDOUT}, "")):
            process = self.start_flood(**options)
            (self.path / "go").touch()
            self.assert_ended(process, 3)
            self.end(process)
            self.assertIn(said, process.err or "")
            (self.path / "go").unlink()

    def full_pipe(self):
        """Returns a full pipe that nobody reads."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x")
        except BlockingIOError:
            os.set_blocking(writer, True)
        for end in (reader, writer):
            self.addCleanup(os.close, end)
        return writer

    def test_fsdpruns_own_errors_are_not_waited_for(self):
        (self.path / "file").touch()
        for status, command in ((2, ["--no-such-flag"]), (127, ["no-such-program"]), (3, ["sh", "-c", "exit 3"]),
                                (1, ["-r", "3", f"--log-dir={self.path}/file", "true"])):
            process = self.start("--nproc-per-node=2", "--shutdown-timeout=1", *command, stderr=self.full_pipe())
            self.assert_ends(process, status)

    def test_what_libtorch_logs_about_a_lost_node_is_not_waited_for(self):
        port = f"--master-port={self.held_port()}"
        lost, process = (self.start("--nnodes=2", f"--node-rank={number}", port, "--shutdown-timeout=1", "sh", "-c",
                                    "touch $D/$RANK; exec sleep 1000", stderr=self.full_pipe()) for number in (0, 1))
        self.take_files("0", "1")
        self.send(lost, signal.SIGKILL)
        self.assert_ends(process, 1)

    def test_signals_act(self):
        process = self.start_flood()
        process.send_signal(signal.SIGTERM)
        self.assert_ended(process, 128 + signal.SIGTERM)
        self.end(process)

    def test_a_stopped_terminal_stops_no_supervision(self):
        leader, follower = pty.openpty()
        termios.tcflow(follower, termios.TCOOFF)
        process = self.start_flood(stdout=follower, stderr=follower)
        (self.path / "go").touch()
        self.assert_ended(process, 3)
        termios.tcflow(follower, termios.TCOON)
        os.close(follower)
        os.close(leader)

    def test_everything_arrives_once_somebody_reads(self):
        process = self.start("--nproc-per-node=2", "sh", "-c", "seq 1 40000; touch $D/$RANK", "--no-prefix")
        self.assertFalse(wait_until(lambda: (self.path / "0").exists() and process.poll() is not None, 1))
        self.end(process, status=0)
        self.assertEqual(len(process.out.splitlines()), 80000)


if __name__ == "__main__":
    unittest.main()
