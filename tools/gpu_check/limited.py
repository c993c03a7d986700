"""Runs a command for so long and no longer."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
import time

PATIENCE = 5  # seconds for what is asked to end; then it is killed


@dataclasses.dataclass
class Ended:
    status: int | None  # None: it was ended at its limit
    output: str  # stdout and stderr together
    seconds: float


def run(command, limit, environment):
    """Waits for `limit` seconds; then ends the command and what it started."""
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
    """Whether the process ended in time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    return False


def end_group(process):
    """Also of a process that has ended: what it left behind would disturb what comes next.

    A launcher that is asked to end takes its ranks along; what then stays is killed. A process that waits for a broken
    device may outlive even that.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        waits(process, PATIENCE)
