"""Runs a command with a time limit."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
import time

PATIENCE = 5  # seconds until a command that was asked to end is killed


@dataclasses.dataclass
class Ended:
    status: int | None  # None if the command was ended at its limit
    output: str  # stdout and stderr together
    seconds: float


def run(command, limit, environment):
    """Waits for at most `limit` seconds, and then ends the command and what it started."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        begun = time.monotonic()
        try:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            return Ended(127, str(error), 0.0)
        is_over = waits(process, limit)
        end_group(process)
        output.seek(0)
        return Ended(process.returncode if is_over else None, output.read(), time.monotonic() - begun)


def waits(process, seconds):
    """Returns true if the process ended in time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    return False


def end_group(process):
    """Ends the process group of `process`, even if `process` has ended, because its children would disturb later parts.

    A launcher that is asked to end also ends its ranks; processes that remain are killed. A process that waits for a
    broken device may survive even that.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        waits(process, PATIENCE)
