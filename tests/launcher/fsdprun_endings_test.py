"""Tests that fsdprun passes signals on and leaves no process behind, however a job ends."""

import os
import pathlib
import shutil
import signal
import sys
import unittest

from fsdprun_case import FsdprunTest, marked_processes, wait_until

BOTH_SAW_IT = ["[rank 0] saw it", "[rank 1] saw it"]
DIE_OF_SIGNALS = ("import os, signal, time\n"
                  "for n in (1, 2, 15): signal.signal(n, signal.SIG_DFL)\n"
                  "open(os.environ['D'] + '/' + os.environ['RANK'], 'w')\n"
                  "time.sleep(1000)")


class Endings(FsdprunTest):
    def test_grandchildren_end_with_their_rank(self):
        for script, status in (("sleep 1000 & [ $RANK != 1 ] || exit 3; sleep 1000", 3), ("sleep 1000 & exit 0", 0),
                               ("setsid sleep 1000 & sleep 0.2; exit 0", 0)):  # this process has left the process group
            self.check(2, script, status=status)

    def test_a_stopped_rank_is_ended(self):
        self.check(2, "[ $RANK = 1 ] || kill -STOP $$; sleep 0.5; exit 3", "--shutdown-timeout=1", status=3)

    def test_a_rank_that_blames_another_one_did_not_fail_first(self):
        say = ("import os, struct; "
               "os.pwrite(int(os.environ['FSDP_BLAME']), struct.pack('i', 1 + %d), 4 * int(os.environ['RANK']))")
        for blamed, first in ((1, 1), (0, 0), (2, 0), (7, 0)):  # itself, one that is ended, no rank
            script = (f'if [ $RANK = 0 ]; then {sys.executable} -c "{say % blamed}"; touch $D/said; exit 4; fi; '
                      "while [ ! -e $D/said ]; do sleep 0.05; done; [ $RANK = 1 ] || sleep 1000; sleep 0.5; exit 3")
            self.check(3, script, status=(4, 3)[first], err=[f"rank {first} .*failed first"])
            (self.path / "said").unlink()

    def start_two(self, *command, **options):
        """Starts ranks that make files named by their numbers."""
        process = self.start("--nproc-per-node=2", *command, **options)
        self.take_files("0", "1")
        return process

    def start_traps(self, name, action, *flags, **options):
        script = f"trap '{action}' {name}; sleep 1000 & touch $D/$RANK; while :; do wait; done"
        return self.start_two(*flags, "sh", "-c", script, **options)

    def test_signals_are_forwarded_and_end_restarts(self):
        for name, number, status in (("INT", signal.SIGINT, 0), ("TERM", signal.SIGTERM, 5)):
            process = self.start_traps(name, f"echo saw it; exit {status}", "--max-restarts=5")
            self.send(process, number, status)
            self.assertEqual(sorted(process.out.splitlines()), BOTH_SAW_IT)

    def test_ranks_that_die_of_the_signal_give_its_status(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.send(self.start_two(sys.executable, "-c", DIE_OF_SIGNALS), number, 128 + number)

    def test_a_second_signal_kills(self):
        process = self.start_traps("INT", ":", "--shutdown-timeout=1000")
        process.send_signal(signal.SIGINT)
        self.assertIn("passed on", process.stderr.readline())
        wait_until(lambda: process.send_signal(signal.SIGINT) or process.poll() is not None)
        self.assert_ends(process, 128 + signal.SIGKILL)

    def test_signals_that_come_at_once_are_one_request(self):
        process = self.start_traps("INT", "exit 0", "--shutdown-timeout=1000")
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            process.send_signal(number)
        self.end(process, status=0)
        self.assertEqual(process.err.count("passed on"), 1, process.err)

    def test_sigusr1_is_forwarded_and_ends_nothing(self):
        process = self.start_traps("USR1", "touch $D/saw$RANK")
        process.send_signal(signal.SIGUSR1)
        self.take_files("saw0", "saw1")
        self.assertIsNone(process.poll())
        self.send(process, signal.SIGTERM)

    def test_a_process_that_cannot_be_killed_is_named_and_not_waited_for(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make a program that another user cannot kill")
        self.path.chmod(0o777)
        program = self.path / "unkillable"
        shutil.copy(os.path.realpath(sys.executable), program)
        program.chmod(0o4755)
        escaped = (f"setsid {program} -c \"import os, time; os.setresuid(0, 0, 0); "
                   "open(os.environ['D'] + '/escaped', 'w'); time.sleep(1000)\" &")
        process = self.start("--nproc-per-node=2", "sh", "-c",
                             escaped + " while [ ! -e $D/escaped ]; do sleep 0.1; done; exit 3",
                             user=65534, group=65534, extra_groups=[])
        try:
            self.end(process, status=3)
        finally:
            for pid in marked_processes(self.marker):
                os.kill(pid, signal.SIGKILL)
        self.assert_all_end()
        self.assertRegex(process.err, r"process \d+, which a rank started, cannot be ended")

    # A process that a shell started before it became fsdprun must live on.

    def beside(self, bystander):
        """Returns a command that runs `bystander` in a shell, which then becomes the command that follows."""
        streams = "exec 3>&1 4>&2 >/dev/null 2>&1; "
        return ["bash", "-c", f"{streams}{bystander}\nexec \"$@\" >&3 2>&4 3>&- 4>&-", "bash"]

    def beside_one(self):
        return self.beside("sleep 300 3>&- 4>&- & echo $! > $D/bystander")

    def end_bystander(self):
        pid = int((self.path / "bystander").read_text())
        self.assertTrue(pathlib.Path(f"/proc/{pid}").exists(), "it was ended")
        os.kill(pid, signal.SIGKILL)
        self.assertTrue(wait_until(lambda: pid not in marked_processes(self.marker)))

    def test_a_bystander_lives_on(self):
        process = self.start("--nproc-per-node=2", "sh", "-c", "setsid sleep 1000 & exit 3", prefix=self.beside_one())
        self.assert_ends(process, 3)
        self.end_bystander()

    def test_a_bystander_that_is_orphaned_while_the_job_runs_lives_on(self):
        orphan = ("(sleep 300 3>&- 4>&- & echo $! > $D/bystander; while [ ! -e $D/0 ]; do sleep 0.05; done; "
                  "touch $D/left) 3>&- 4>&- &")
        script = "touch $D/0; while [ ! -e $D/left ]; do sleep 0.05; done; sleep 0.2"
        self.assert_ends(self.start("sh", "-c", script, prefix=self.beside(orphan)), 0)
        self.end_bystander()

    def test_a_bystander_does_not_keep_signals_from_the_ranks(self):
        process = self.start_traps("TERM", "echo saw it; exit 5", prefix=self.beside_one())
        self.send(process, signal.SIGTERM, status=5)
        self.assertEqual(sorted(process.out.splitlines()), BOTH_SAW_IT)
        self.end_bystander()

    def test_a_killed_launcher_takes_everything_along_but_the_bystander(self):
        process = self.start_two("sh", "-c", "sleep 1000 & touch $D/$RANK; wait", prefix=self.beside_one())
        self.send(process, signal.SIGKILL)
        bystander = int((self.path / "bystander").read_text())
        self.assertTrue(wait_until(lambda: marked_processes(self.marker) == [bystander], 10))
        self.end_bystander()


if __name__ == "__main__":
    unittest.main()
