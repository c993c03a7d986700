"""Describes where a figure comes from: command, machine, date, commit."""

import datetime
import os
import pathlib
import re
import shlex
import subprocess
import sys


def first_match(path, pattern):
    found = re.search(pattern, pathlib.Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].strip() if found else "unknown"


def commit(root):
    def git(*words):
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False).stdout.strip()
    name = git("rev-parse", "--short", "HEAD") or "unknown"
    return name + (" with changes" if git("status", "--porcelain", "--untracked-files=no") else "")


def machine():
    memory = int(first_match("/proc/meminfo", r"^MemTotal:\s+(\d+)")) / 2**20
    return f"{len(os.sched_getaffinity(0))} processors ({first_match('/proc/cpuinfo', r'^model name.*: (.*)')}), " \
           f"{memory:.0f} GiB"


def command():
    return shlex.join([os.path.relpath(sys.argv[0]), *sys.argv[1:]])


def date():
    return datetime.date.today().isoformat()
