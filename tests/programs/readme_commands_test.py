"""Runs the commands of docs/tutorial.md that train a model, draw its metrics and open it in Python.

    python3 readme_commands_test.py FOLDER_OF_PROGRAMS

The commands run in a copy of scripts/ in which setup and build only link the programs. Without matplotlib and
safetensors, which scripts/setup installs, commands that need them are left out, and the test exits with 77.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from program_case import ProgramTest, run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
PROGRAMS = pathlib.Path()
MOST_COMMANDS = 5
PNG = b"\x89PNG\r\n\x1a\n"
SHOWS_PROGRAMS = """#!/bin/sh
[ "$1" = release ] || exit 2
shift
mkdir -p build/release/bin
for program in "$@"; do ln -s "{programs}/$program" build/release/bin/ || exit 1; done
"""


def pages():
    return [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/tutorial.md")]


def commands():
    """Returns the lines of the indented block that trains, draws and exports."""
    blocks = re.findall(r"(?:^    .*\n)+", "\n".join(pages()), re.MULTILINE)
    block, = [block for block in blocks if "scripts/plot" in block]
    return [line.strip() for line in block.replace("\\\n", "").splitlines()]


def python_has(*modules):
    command = [PYTHON, "-c", f"import {', '.join(modules)}"]
    return PYTHON.exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0


class Commands(ProgramTest):
    def make_clone(self):
        scripts = self.folder / "scripts"
        shutil.copytree(ROOT / "scripts", scripts)
        (self.folder / ".venv").symlink_to(PYTHON.parent.parent)
        (scripts / "setup").write_text("#!/bin/sh\nmkdir -p build\n", encoding="utf-8")
        (scripts / "build").write_text(SHOWS_PROGRAMS.format(programs=PROGRAMS), encoding="utf-8")

    def test_train_draw_and_are_opened_by_python(self):
        if not python_has("matplotlib", "safetensors.torch"):
            self.skipTest("matplotlib or safetensors is missing: run scripts/setup")
        lines = commands()
        self.assertLessEqual(len(lines), MOST_COMMANDS)
        self.make_clone()
        output = [run("bash", "-c", line, cwd=self.folder) for line in lines]
        metrics, = self.folder.glob("build/*.jsonl")
        losses = [record["loss"] for record in map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
                  if "loss" in record]
        self.assertLess(losses[-1], losses[0] - 0.5)
        picture, = self.folder.glob("build/*.png")
        self.assertTrue(picture.read_bytes().startswith(PNG))
        self.assertRegex(output[-1], r"blocks\.0\.\S+ .*\[\d+, \d+\]")

    def test_their_scripts_and_those_beside_them_explain_themselves(self):
        named = set(re.findall(r"(?<![\w/])scripts/(\w+)", "\n".join(pages())))
        self.assertLessEqual({"demo", "test", "setup", "build", "plot"}, named)
        if not PYTHON.exists():
            named.remove("plot")
        for script in named:
            self.assertRegex(run(ROOT / "scripts" / script, "--help"), rf"usage: scripts/{script}")


if __name__ == "__main__":
    PROGRAMS = pathlib.Path(sys.argv.pop(1)).resolve()
    result = unittest.main(exit=False).result
    print(*(f"skipped: {why}" for _, why in result.skipped), sep="\n")
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
