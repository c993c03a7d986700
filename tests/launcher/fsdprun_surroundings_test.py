"""Tests fsdprun with signals ignored, with standard streams closed, without a network, and with few open files."""

import os
import signal
import sys
import unittest

from fsdprun_case import FsdprunTest

NO_NETWORK = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]


def ignoring(*numbers):
    """Returns options for Popen with which the program ignores these signals from its start."""

    def ignore():
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    return {"preexec_fn": ignore}


def with_shell(setting):
    """Returns a shell command that changes a setting and becomes the command that follows."""
    return ["bash", "-c", f"{setting[0]} exec \"$@\" {setting[1]}", "bash"]


class IgnoredSignals(FsdprunTest):
    # Signals are ignored in a job under nohup, and in one that a script starts in the background.
    def test_stay_ignored(self):
        script = "trap 'exit 5' TERM; trap 'touch $D/saw$RANK' USR1; touch $D/$RANK; while :; do sleep 0.1; done"
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            with self.subTest(number):
                process = self.start("--nproc-per-node=2", "sh", "-c", script, **ignoring(number))
                self.take_files("0", "1")
                process.send_signal(number)
                process.send_signal(signal.SIGUSR1)  # the process reads this signal after the other one
                self.take_files("saw0", "saw1")
                self.send(process, signal.SIGTERM, status=5)
                self.assertNotIn(number.name, process.err)

    def test_ranks_find_them_as_fsdprun_did(self):
        for ignored in ((), (signal.SIGPIPE, signal.SIGINT)):
            process = self.start("--nproc-per-node=2", "--no-prefix", "grep", "SigIgn", "/proc/self/status",
                                 restore_signals=True, **ignoring(*ignored))
            self.end(process, status=0)
            mask = sum(1 << (number - 1) for number in ignored)
            self.assertEqual([int(line.split()[1], 16) for line in process.out.splitlines()], [mask, mask])

    def test_the_end_of_ranks_is_seen_where_it_was_ignored(self):
        process = self.start("--nproc-per-node=2", "sh", "-c", "[ $RANK = 0 ] || exit 3", **ignoring(signal.SIGCHLD))
        self.assert_ends(process, 3)


class ClosedStreams(FsdprunTest):
    def test_lead_nowhere_and_end_nothing(self):
        for closed in ("2>&-", ">&-", "<&-", "<&- >&- 2>&-"):
            for ranks in (1, 2):
                with self.subTest(f"{ranks} with {closed}"):
                    script = ("streams=$(for n in 0 1 2; do readlink /proc/$$/fd/$n; done); "
                              "echo \"$streams\" >$D/streams$RANK; echo out; echo err >&2; exit 4")
                    process = self.start(f"--nproc-per-node={ranks}", "sh", "-c", script,
                                         prefix=with_shell(("", closed)))
                    self.end(process, status=4)
                    self.assertEqual("out" in process.out, ">&-" not in closed.split())
                    streams = (self.path / "streams0").read_text().split()
                    self.assertEqual(len(streams), 3)
                    if ranks == 1 and ">&- 2>&-" in closed:
                        self.assertEqual(streams, ["/dev/null"] * 3)


class Unreachable(FsdprunTest):
    def test_without_a_network(self):
        process = self.start("--nproc-per-node=2", "true", prefix=NO_NETWORK)
        self.assert_ends(process, 1, "cannot be reached at 127.0.0.1:", "from this host itself: Network is unreachable",
                         "`ip link set lo up`")

    def test_without_more_open_files(self):
        for limit in (12, 14, 16, 18, 20):
            with self.subTest(limit):
                process = self.start("--nproc-per-node=2", "--heartbeat-timeout=2", "true",
                                     prefix=with_shell((f"ulimit -n {limit};", "")))
                self.assert_ends(process, 1, "pen files")

    def test_a_signal_is_heard_while_the_store_opens(self):
        process = self.start("--nproc-per-node=2", "true", prefix=with_shell(("ulimit -n 16;", "")))
        process.stderr.readline()  # LibTorch's first error message
        process.send_signal(signal.SIGTERM)
        self.assert_ends(process, 128 + signal.SIGTERM, "SIGTERM while waiting for the store of this launcher")


if __name__ == "__main__":
    unittest.main()
