"""However a job ends, fsdprun passes signals on and leaves no process behind."""

import signal
import sys
import unittest

from fsdprun_case import LIMIT_S, FsdprunTest, marked_processes, wait_until


class Endings(FsdprunTest):
    def test_grandchildren_end_with_their_rank(self):
        result = self.shell(2, "sleep 1000 & [ $RANK != 1 ] || exit 3; sleep 1000")
        self.assertEqual(result.returncode, 3)

    def test_grandchildren_end_after_success_too(self):
        self.assertEqual(self.shell(2, "sleep 1000 & exit 0").returncode, 0)

    def test_processes_that_left_the_group_end_too(self):
        result = self.shell(2, "setsid sleep 1000 & sleep 0.2; exit 0")
        self.assertEqual(result.returncode, 0)

    def start_traps(self, name, action, *flags):
        process = self.start(
            *flags, "--nproc-per-node=2", "sh", "-c",
            f"trap '{action}' {name}; sleep 1000 & touch $D/$RANK; while :; do wait; done")
        self.wait_for_files("0", "1")
        return process

    def test_sigint_is_forwarded(self):
        process = self.start_traps("INT", "echo saw it; exit 0")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(sorted(out.splitlines()), ["[rank 0] saw it", "[rank 1] saw it"])
        self.assertEqual(process.returncode, 0)

    def test_ranks_that_die_of_the_signal_give_its_status(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start("--nproc-per-node=2", sys.executable, "-c",
                                 "import os, signal, time\n"
                                 "for n in (1, 2, 15): signal.signal(n, signal.SIG_DFL)\n"
                                 "open(os.environ['D'] + '/' + os.environ['RANK'], 'w')\n"
                                 "time.sleep(1000)")
            self.wait_for_files("0", "1")
            process.send_signal(number)
            process.communicate(timeout=LIMIT_S)
            self.assertEqual(process.returncode, 128 + number)
            for rank in "01":
                (self.path / rank).unlink()

    def test_a_signal_ends_restarts(self):
        process = self.start_traps("TERM", "exit 5", "--max-restarts=5")
        process.terminate()
        process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 5)

    def test_a_second_signal_kills(self):
        process = self.start_traps("INT", ":", "--shutdown-timeout=1000")
        process.send_signal(signal.SIGINT)
        self.assertIn("passed on", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 128 + signal.SIGKILL)

    def test_sigusr1_is_forwarded_and_ends_nothing(self):
        process = self.start_traps("USR1", "touch $D/saw$RANK")
        process.send_signal(signal.SIGUSR1)
        self.wait_for_files("saw0", "saw1")
        self.assertIsNone(process.poll())
        process.terminate()
        process.communicate(timeout=LIMIT_S)

    def test_a_killed_launcher_takes_everything_along(self):
        process = self.start("--nproc-per-node=2", "sh", "-c",
                             "sleep 1000 & touch $D/$RANK; wait")
        self.wait_for_files("0", "1")
        process.kill()
        process.communicate(timeout=LIMIT_S)
        self.assertTrue(wait_until(lambda: not marked_processes(self.marker), 10))

    def test_a_stopped_rank_is_ended(self):
        result = self.shell(2, "[ $RANK = 1 ] || kill -STOP $$; sleep 0.5; exit 3",
                            "--shutdown-timeout=1")
        self.assertEqual(result.returncode, 3)


if __name__ == "__main__":
    unittest.main()
