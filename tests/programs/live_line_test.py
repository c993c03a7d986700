"""Tests of the progress of gpt and mnist: one line on a terminal, alone and under fsdprun; plain lines elsewhere.

    python3 live_line_test.py GPT MNIST FSDPRUN
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import unittest

from program_case import ENVIRONMENT, SMALL_GPT, TIMEOUT_S, ProgramTest, run

GPT = MNIST = FSDPRUN = ""
COLUMNS = 70
ERASE_REST = "\x1b[K"
OF_GPT = [*SMALL_GPT, "--no-cuda", *"--steps 4 --eval-every 2 --warmup 1".split()]
OF_MNIST = "--no-cuda --train-samples 32 --test-samples 50 --batch-size 4 --test-batch-size 20 --epochs 2".split()


def shown_on_a_terminal(command, folder):
    """Runs `command` on a terminal of COLUMNS. Returns what it writes, and the lines that the terminal then shows."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=follower,
                          stderr=follower) as process:
        os.close(follower)
        limit = threading.Timer(TIMEOUT_S, process.kill)
        limit.start()
        written = b""
        try:
            while piece := os.read(leader, 4096):
                written += piece
        except OSError:  # no process has the terminal open any more
            pass
        finally:
            process.wait()
            limit.cancel()
            os.close(leader)
    assert process.returncode == 0, written
    written = written.decode()
    return written, screen_of(written)


def screen_of(written):
    """Returns the lines that an infinitely wide terminal shows of it."""
    lines, column = [""], 0
    for part in re.split(r"(\r|\n|\x1b\[K)", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            lines.append("")
        elif part == ERASE_REST:
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part):]
            column += len(part)
    return lines


class LiveLine(ProgramTest):
    def commands(self, program, words):
        return [program, *words], [FSDPRUN, "--nproc_per_node", "2", program, *words]

    def assert_one_line(self, command, last_step, notes):
        """The line is rewritten many times, fits the terminal, and is gone in the end; then the notes stand there as in
        a file."""
        written, screen = shown_on_a_terminal(command, self.folder)
        live = re.findall(r"(?:\[rank 0\] )?step \d+/\d+  loss [^\r\n\x1b]*", written)
        self.assertGreaterEqual(len(live), 2, written)
        self.assertRegex(live[-1], rf"step {last_step}/{last_step}  loss \d")
        self.assertLess(max(map(len, live)), COLUMNS)
        self.assertEqual([line for line in screen if re.search(r"step \d+/\d+", line)], [])
        for note in notes:
            self.assertEqual(len([line for line in screen if re.fullmatch(rf"(\[rank 0\] )?{note}", line)]), 1, screen)

    def assert_plain(self, command, live_lines):
        shown = run(*command, cwd=self.folder)
        self.assertNotRegex(shown, r"[\r\x1b]")
        self.assertEqual(len(re.findall(r"^(?:\[rank 0\] )?step \d+/\d+  loss ", shown, re.MULTILINE)), live_lines)

    def test_of_gpt(self):
        for command in self.commands(GPT, OF_GPT):
            with self.subTest(command[0]):
                self.assert_one_line(command, 4, [r"step 2: validation loss .*", r"step 4: validation loss .*"])
                self.assert_plain(command, 4)

    def test_of_mnist(self):
        for ranks, command in enumerate(self.commands(MNIST, OF_MNIST), 1):
            with self.subTest(command[0]):
                self.assert_one_line(command, 16 // ranks, [r"Train Epoch: 1  Loss: \S+", r"Train Epoch: 2  Loss: \S+"])
                self.assert_plain(command, 0)


if __name__ == "__main__":
    GPT, MNIST, FSDPRUN = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
