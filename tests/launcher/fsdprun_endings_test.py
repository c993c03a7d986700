"""However a job ends, fsdprun passes signals on and leaves no process behind."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

from fsdprun_case import FSDPRUN, LIMIT_S, FsdprunTest, marked_processes, wait_until


class Endings(FsdprunTest):
    def test_grandchildren_end_with_their_rank(self):
        for script, status in (("sleep 1000 & [ $RANK != 1 ] || exit 3; sleep 1000", 3), ("sleep 1000 & exit 0", 0),
                               ("setsid sleep 1000 & sleep 0.2; exit 0", 0)):  # this one has left the group
            self.check(2, script, status=status)

    def test_a_stopped_rank_is_ended(self):
        self.check(2, "[ $RANK = 1 ] || kill -STOP $$; sleep 0.5; exit 3", "--shutdown-timeout=1", status=3)

    def start_traps(self, name, action, *flags):
        process = self.start(
            *flags, "--nproc-per-node=2", "sh", "-c",
            f"trap '{action}' {name}; sleep 1000 & touch $D/$RANK; while :; do wait; done")
        self.wait_for_files("0", "1")
        return process

    def test_signals_are_forwarded_and_end_restarts(self):
        for name, number, status in (("INT", signal.SIGINT, 0), ("TERM", signal.SIGTERM, 5)):
            process = self.start_traps(name, f"echo saw it; exit {status}", "--max-restarts=5")
            process.send_signal(number)
            out, _ = process.communicate(timeout=LIMIT_S)
            self.assertEqual(sorted(out.splitlines()), ["[rank 0] saw it", "[rank 1] saw it"])
            self.assertEqual(process.returncode, status)
            for rank in "01":
                (self.path / rank).unlink()

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

    def test_a_second_signal_kills(self):
        process = self.start_traps("INT", ":", "--shutdown-timeout=1000")
        process.send_signal(signal.SIGINT)
        self.assertIn("passed on", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        self.assert_ends(process, 128 + signal.SIGKILL)

    def test_sigusr1_is_forwarded_and_ends_nothing(self):
        process = self.start_traps("USR1", "touch $D/saw$RANK")
        process.send_signal(signal.SIGUSR1)
        self.wait_for_files("saw0", "saw1")
        self.assertIsNone(process.poll())
        process.terminate()
        process.communicate(timeout=LIMIT_S)

    def test_a_killed_launcher_takes_everything_along(self):
        process = self.start("--nproc-per-node=2", "sh", "-c", "sleep 1000 & touch $D/$RANK; wait")
        self.wait_for_files("0", "1")
        process.kill()
        process.communicate(timeout=LIMIT_S)
        self.assertTrue(wait_until(lambda: not marked_processes(self.marker), 10))

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
            _, errors = process.communicate(timeout=LIMIT_S)
        finally:
            for pid in marked_processes(self.marker):
                os.kill(pid, signal.SIGKILL)
        self.assertTrue(wait_until(lambda: not marked_processes(self.marker)))
        self.assertEqual(process.returncode, 3, errors)
        self.assertRegex(errors, r"process \d+, started by a rank, cannot be ended")


class Bystanders(FsdprunTest):
    """Processes that a shell started before it became fsdprun."""

    BYSTANDER = "sleep 300 3>&- 4>&- & echo $! > $D/bystander"

    def start_beside(self, bystanders, *arguments):
        shell = f"exec 3>&1 4>&2 >/dev/null 2>&1; {bystanders}\nexec \"$@\" >&3 2>&4 3>&- 4>&-"
        return subprocess.Popen(["bash", "-c", shell, "bash", FSDPRUN, *arguments], env=self.environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def end_bystander(self, name):
        pid = int((self.path / name).read_text())
        self.assertTrue(pathlib.Path(f"/proc/{pid}").exists(), f"{name} was ended")
        os.kill(pid, signal.SIGKILL)
        self.assertTrue(wait_until(lambda: pid not in marked_processes(self.marker)), f"{name} lives on")

    def test_live_on(self):
        process = self.start_beside(self.BYSTANDER, "--nproc-per-node=2", "sh", "-c", "setsid sleep 1000 & exit 3")
        self.assert_ends(process, 3)
        self.end_bystander("bystander")

    def test_orphaned_while_the_job_runs_live_on(self):
        process = self.start_beside(
            "(sleep 300 3>&- 4>&- & echo $! > $D/orphan; while [ ! -e $D/0 ]; do sleep 0.05; done; touch $D/left) "
            "3>&- 4>&- &",
            "--nproc-per-node=1", "sh", "-c", "touch $D/0; while [ ! -e $D/left ]; do sleep 0.05; done; sleep 0.2")
        self.assert_ends(process, 0)
        self.end_bystander("orphan")

    def test_do_not_keep_signals_from_the_ranks(self):
        process = self.start_beside(self.BYSTANDER, "--nproc-per-node=2", "sh", "-c",
                                    "trap 'echo saw it; exit 5' TERM; touch $D/$RANK; while :; do sleep 0.1; done")
        self.wait_for_files("0", "1")
        process.terminate()
        out, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(sorted(out.splitlines()), ["[rank 0] saw it", "[rank 1] saw it"])
        self.assertEqual(process.returncode, 5)
        self.end_bystander("bystander")

    def test_do_not_keep_the_ranks_alive_when_the_launcher_is_killed(self):
        process = self.start_beside(self.BYSTANDER, "--nproc-per-node=2", "sh", "-c",
                                    "sleep 1000 & touch $D/$RANK; wait")
        self.wait_for_files("0", "1")
        process.kill()
        process.communicate(timeout=LIMIT_S)
        bystander = int((self.path / "bystander").read_text())
        self.assertTrue(wait_until(lambda: marked_processes(self.marker) == [bystander], 10))
        self.end_bystander("bystander")


if __name__ == "__main__":
    unittest.main()
