"""What fsdprun does with the ranks' output and input."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import unittest

from fsdprun_case import LIMIT_S, FsdprunTest, wait_until


class Output(FsdprunTest):
    def test_lines_are_prefixed_and_never_mixed(self):
        result = self.shell(
            4, "i=0; while [ $i -lt 200 ]; do printf 'aaaaaaaa'; printf 'bbbbbbbb\\n'; i=$((i+1)); "
            "done")
        lines = result.out.splitlines()
        self.assertEqual(len(lines), 800)
        for line in lines:
            self.assertRegex(line, r"^\[rank [0-3]\] aaaaaaaabbbbbbbb$")

    def test_streams_stay_apart(self):
        result = self.shell(2, "echo out; echo err >&2")
        self.assertEqual(sorted(result.out.splitlines()), ["[rank 0] out", "[rank 1] out"])
        self.assertEqual(sorted(result.err.splitlines()), ["[rank 0] err", "[rank 1] err"])

    def test_a_last_line_without_end_is_completed(self):
        result = self.shell(2, "printf x")
        self.assertEqual(sorted(result.out.splitlines()), ["[rank 0] x", "[rank 1] x"])

    def test_progress_lines_keep_their_returns_and_get_prefixes(self):
        process = self.start("--nproc-per-node=2", "sh", "-c",
                             "[ $RANK = 1 ] || printf '1 %%\\r2 %%\\r3 %%\\n'", text=False)
        out, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(out, b"[rank 0] 1 %\r[rank 0] 2 %\r[rank 0] 3 %\n")

    def test_progress_lines_arrive_at_once(self):
        process = self.start("--nproc-per-node=2", "sh", "-c",
                             "[ $RANK = 1 ] || printf '50 %%\\r'; sleep 1000")
        expected = b"[rank 0] 50 %\r"
        self.assertEqual(os.read(process.stdout.fileno(), 100), expected)
        process.terminate()
        process.communicate(timeout=LIMIT_S)

    def test_the_prefix_can_be_chosen(self):
        self.assertEqual(self.shell(1, "echo x", "--prefix").out, "[rank 0] x\n")
        self.assertEqual(self.shell(2, "echo x", "--no-prefix").out, "x\nx\n")

    def test_one_rank_has_the_terminal(self):
        leader, follower = pty.openpty()
        process = self.start("sh", "-c", "[ -t 1 ] && echo yes", stdout=follower)
        os.close(follower)
        process.communicate(timeout=LIMIT_S)
        self.assertEqual(os.read(leader, 100), b"yes\r\n")
        os.close(leader)
        self.assertEqual(process.returncode, 0)

    def test_ranks_of_a_launcher_on_a_terminal_know_its_columns(self):
        script = "printf \"${FSDP_TERMINAL_COLUMNS-none}\\n\" >$D/columns.$RANK"
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        process = self.start("--nproc-per-node=2", "--redirects=1:1", "sh", "-c", script, stdout=follower)
        os.close(follower)
        process.communicate(timeout=LIMIT_S)
        os.close(leader)
        self.assertEqual([(self.path / f"columns.{rank}").read_text() for rank in (0, 1)], ["84\n", "none\n"])
        self.shell(1, script)
        self.assertEqual((self.path / "columns.0").read_text(), "none\n")

    def test_one_rank_reads_what_the_launcher_was_given(self):
        (self.path / "input").write_text("hello\n")
        with (self.path / "input").open() as text:
            self.assertEqual(self.run_ranks("cat", stdin=text).out, "hello\n")

    def test_several_ranks_read_nothing(self):
        (self.path / "input").write_text("hello\n")
        with (self.path / "input").open() as text:
            self.assertEqual(self.run_ranks("--nproc-per-node=2", "cat", stdin=text).out, "")

    def test_only_filtered_ranks_are_shown(self):
        result = self.shell(3, "echo x", "--local-ranks-filter=0,2")
        self.assertEqual(sorted(result.out.splitlines()), ["[rank 0] x", "[rank 2] x"])

    def log(self, rank, name, attempt=0):
        files = list(self.path.glob(f"job_*/attempt_{attempt}/{rank}/{name}.log"))
        self.assertLessEqual(len(files), 1)
        return files[0].read_text() if files else None

    def test_redirected_streams_go_to_files_only(self):
        result = self.shell(2, "echo out; echo err >&2", "-r", "1", f"--log-dir={self.path}",
                            "--rdzv-id=job")
        self.assertEqual(result.out, "")
        self.assertIn("[rank 0] err", result.err)
        self.assertEqual([self.log(rank, "stdout") for rank in (0, 1)], ["out\n", "out\n"])
        self.assertIsNone(self.log(0, "stderr"))

    def test_teed_streams_go_both_ways(self):
        result = self.shell(2, "echo out; echo err >&2", "-t", "0:3,1:2", f"--log-dir={self.path}",
                            "--rdzv-id=job")
        self.assertEqual(sorted(result.out.splitlines()), ["[rank 0] out", "[rank 1] out"])
        self.assertEqual(self.log(0, "stdout"), "out\n")
        self.assertEqual(self.log(1, "stderr"), "err\n")
        self.assertIsNone(self.log(1, "stdout"))

    def test_each_attempt_has_its_own_files(self):
        self.shell(1, "echo $TORCHELASTIC_RESTART_COUNT; exit 1", "-r", "3", "--max-restarts=1",
                   f"--log-dir={self.path}", "--rdzv-id=job")
        self.assertEqual(self.log(0, "stdout", attempt=0), "0\n")
        self.assertEqual(self.log(0, "stdout", attempt=1), "1\n")

    def test_files_and_their_folders_are_private(self):
        previous = os.umask(0)
        try:
            self.shell(1, "echo out", "-r", "3", f"--log-dir={self.path}/new", "--rdzv-id=job")
        finally:
            os.umask(previous)
        (job,) = (self.path / "new").glob("job_*")
        paths = [job, *job.rglob("*")]
        self.assertEqual(len(paths), 5)
        for path in paths:
            self.assertEqual(path.stat().st_mode & 0o777, 0o700 if path.is_dir() else 0o600, path)

    def test_the_default_folder_is_this_users_own(self):
        self.environment["TMPDIR"] = self.folder.name
        self.assertEqual(self.shell(1, "echo out", "-r", "1").returncode, 0)
        (folder,) = self.path.glob("fsdprun*")
        self.assertEqual(folder.stat().st_mode & 0o777, 0o700)
        folder.chmod(0o777)
        result = self.shell(1, "touch $D/ran", "-r", "1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("others may use it", result.err)
        self.assertFalse((self.path / "ran").exists())

    def test_a_link_in_place_of_the_folder_is_refused(self):
        (self.path / "elsewhere").mkdir(mode=0o700)
        self.environment["TMPDIR"] = self.folder.name
        for name, flags in ((f"fsdprun-{os.geteuid()}", []), ("logs", [f"--log-dir={self.path}/logs"]),
                            ("logs", [f"--log-dir={self.path}/logs/"])):
            link = self.path / name
            if not link.is_symlink():
                link.symlink_to(self.path / "elsewhere")
            result = self.shell(1, "touch $D/ran", "-r", "3", *flags)
            self.assertEqual(result.returncode, 1)
            self.assertIn("is a link, which is not followed", result.err)
        self.assertEqual(list((self.path / "elsewhere").iterdir()), [])
        self.assertFalse((self.path / "ran").exists())

    def test_a_link_in_place_of_a_file_is_refused(self):
        result = self.shell(1, "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && cd $D/job_* && mkdir -p attempt_1/0 && "
                            "ln -s $D/target attempt_1/0/stdout.log; exit 3", "-r", "1", "--max-restarts=1",
                            f"--log-dir={self.path}", "--rdzv-id=job")
        self.assertEqual(result.returncode, 1)
        self.assertIn("stdout.log cannot be made", result.err)
        self.assertFalse((self.path / "target").exists())

    def test_the_name_of_a_job_leads_nowhere_else(self):
        self.shell(1, "echo out", "-r", "1", f"--log-dir={self.path}/logs", "--rdzv-id=../../up")
        self.assertEqual([path.name.rsplit("_", 1)[0] for path in (self.path / "logs").iterdir()],
                         ["_.._.._up"])

    def test_redirected_errors_are_still_summed_up(self):
        result = self.shell(2, "echo the reason >&2; exit 4", "-r", "3", f"--log-dir={self.path}")
        self.assertEqual(result.returncode, 4)
        self.assertIn("  the reason\n", result.err)

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
            self.assertIn("fsdprun: cannot write what the ranks print: No space left on device\n", result.err)


class UnreadOutput(FsdprunTest):
    """Nobody reads what the ranks print, or the terminal was stopped by Ctrl-S."""

    FLOOD = "[ $RANK = 1 ] || { touch $D/0; exec yes; }; while [ ! -e $D/go ]; do sleep 0.05; done; exit 3"

    def start_flood(self, *flags, **options):
        process = self.start(*flags, "--nproc-per-node=2", "--shutdown-timeout=2", "sh", "-c", self.FLOOD, **options)
        self.wait_for_files("0")
        self.wait_until_blocked()
        return process

    def wait_until_blocked(self):
        """Until the rank that floods waits for somebody to read its pipe."""
        def is_blocked():
            for pid in os.listdir("/proc"):
                try:
                    with open(f"/proc/{pid}/comm", encoding="utf-8") as name:
                        if name.read() != "yes\n":
                            continue
                    with open(f"/proc/{pid}/environ", "rb") as environ:
                        if self.marker.encode() not in environ.read():
                            continue
                    with open(f"/proc/{pid}/wchan", encoding="utf-8") as place:
                        return "pipe" in place.read()
                except OSError:
                    pass
            return False
        self.assertTrue(wait_until(is_blocked))

    def close(self, process):
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()

    def test_a_rank_that_ends_is_noticed(self):
        process = self.start_flood()
        (self.path / "go").touch()
        self.assertTrue(wait_until(lambda: process.poll() is not None, 30))
        self.assertEqual(process.returncode, 3)
        self.assertIn("rank 1", process.stderr.read())
        self.close(process)

    def test_a_rank_that_ends_is_noticed_though_the_errors_go_unread_too(self):
        process = self.start_flood(stderr=subprocess.STDOUT)
        (self.path / "go").touch()
        self.assertTrue(wait_until(lambda: process.poll() is not None, 30))
        self.assertEqual(process.returncode, 3)
        self.close(process)

    def full_pipe(self):
        """A pipe that nobody reads and that has room for nothing."""
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
        for status, command in ((127, ["no-such-program"]), (1, ["-r", "3", f"--log-dir={self.path}/file", "true"]),
                                (3, ["sh", "-c", "exit 3"])):
            process = self.start("--nproc-per-node=2", "--shutdown-timeout=1", *command, stderr=self.full_pipe())
            has_ended = wait_until(lambda: process.poll() is not None, 30)
            process.kill()
            process.communicate(timeout=LIMIT_S)
            self.assertTrue(has_ended, command)
            self.assertEqual(process.returncode, status)

    def test_signals_act(self):
        process = self.start_flood()
        process.send_signal(signal.SIGTERM)
        self.assertTrue(wait_until(lambda: process.poll() is not None, 30))
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.close(process)

    def test_a_stopped_terminal_stops_no_supervision(self):
        leader, follower = pty.openpty()
        termios.tcflow(follower, termios.TCOOFF)
        process = self.start_flood(stdout=follower, stderr=follower)
        (self.path / "go").touch()
        self.assertTrue(wait_until(lambda: process.poll() is not None, 30))
        self.assertEqual(process.returncode, 3)
        termios.tcflow(follower, termios.TCOON)
        os.close(follower)
        os.close(leader)

    def test_everything_arrives_once_somebody_reads(self):
        process = self.start("--nproc-per-node=2", "sh", "-c", "seq 1 40000; touch $D/$RANK", "--no-prefix")
        self.assertFalse(wait_until(lambda: (self.path / "0").exists() and process.poll() is not None, 1))
        out, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(len(out.splitlines()), 80000)


if __name__ == "__main__":
    unittest.main()
