"""scripts/setup prefers a LibTorch that is named, and says in one sentence what is wrong with a machine."""

import os
import pathlib
import shutil
import subprocess
import unittest

from tree import Tree

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
# What the script calls, apart from what a test leaves out or replaces.
COMMANDS = ("awk bash c++ cat cmake cut date df dirname env flock git grep head id mkdir ninja paste printf"
            " python3 rm rmdir sed sort sudo tail").split()


class Setup(Tree):
    def setUp(self):
        super().setUp()
        shutil.copytree(SCRIPTS, self.root / "scripts")
        self.bin = self.root / "bin"
        self.bin.mkdir()
        for command in COMMANDS:
            found = shutil.which(command)
            if found:
                (self.bin / command).symlink_to(found)
        self.stub("dpkg-query", "echo installed")
        self.stub("apt-get", "echo 'nothing may be installed here' >&2; exit 1")

    def stub(self, command, script):
        path = self.bin / command
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def libtorch(self, version, folder="torch"):
        include = f"{folder}/include/torch"
        numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
        self.write(f"{include}/headeronly/version.h", "".join(f"#define TORCH_VERSION_{n} {v}\n" for n, v in numbers))
        self.write(f"{include}/csrc/api/include/torch/torch.h", "")
        return str(self.root / folder)

    def run_setup(self, **environment):
        environment = {"PATH": str(self.bin), "HOME": str(self.root), **environment}
        return subprocess.run([self.root / "scripts" / "setup"], env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60, check=False)

    def assert_fails_with(self, sentence, **environment):
        result = self.run_setup(**environment)
        self.assertEqual(result.returncode, 1, result)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn(sentence, result.stderr)

    def test_takes_the_libtorch_named_by_fsdp_torch(self):
        result = self.run_setup(FSDP_TORCH=self.libtorch("2.12.1"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("LibTorch 2.12.1 at", result.stdout)
        self.assertFalse((self.root / ".venv").exists())

    def test_takes_the_libtorch_in_cmake_prefix_path(self):
        self.libtorch("2.15.0")
        path = f"/nowhere:{self.root}/torch/share/cmake"
        (self.root / "torch" / "share" / "cmake").mkdir(parents=True)
        self.assertIn("named by CMAKE_PREFIX_PATH", self.run_setup(CMAKE_PREFIX_PATH=path).stdout)

    def test_refuses_an_older_or_newer_libtorch(self):
        for version in ("2.10.0", "2.16.0", "1.13.1"):
            with self.subTest(version):
                self.assert_fails_with(f"LibTorch {version} at", FSDP_TORCH=self.libtorch(version, version))

    def test_refuses_a_folder_without_libtorch(self):
        self.assert_fails_with("where there is no LibTorch", FSDP_TORCH="/nowhere")

    def test_says_that_there_is_no_compiler(self):
        self.assert_fails_with("no compiler", CXX="/nowhere/c++")

    def test_says_that_there_is_no_package_manager(self):
        (self.bin / "apt-get").unlink()
        (self.bin / "ninja").unlink()
        self.assert_fails_with("no package manager: ninja is missing")

    def test_says_that_there_is_no_network(self):
        self.stub("dpkg-query", "exit 1")
        self.stub("apt-get", "echo \"E: Failed to fetch x  Could not resolve 'y'\"; exit 100")
        self.stub("id", "echo 0")
        self.assert_fails_with("no network")

    def test_names_the_packages_that_apt_does_not_know(self):
        self.stub("dpkg-query", "exit 1")
        self.stub("apt-get", "[[ $* == *update ]] || { echo 'E: Unable to locate package libgloo-dev'; exit 100; }")
        self.stub("id", "echo 0")
        self.assert_fails_with("apt-get does not know libgloo-dev")

    def test_says_that_there_is_no_sudo(self):
        self.stub("dpkg-query", "exit 1")
        self.stub("id", "echo 1000")
        (self.bin / "sudo").unlink(missing_ok=True)
        self.assert_fails_with("no sudo")

    def test_says_that_python_is_too_old(self):
        self.stub("python3", 'if [[ $1 == -V ]]; then echo "Python 3.8.10"; else exit 1; fi')
        script = self.root / "scripts" / "setup"  # which also looks for the system's python3
        script.write_text(script.read_text(encoding="utf-8").replace("/usr/bin/python3", "/nowhere/python3"), encoding="utf-8")
        self.assert_fails_with("Python 3.8.10: Python 3.10 or newer")


if __name__ == "__main__":
    unittest.main()
