"""scripts/setup: which LibTorch it takes, what it tells before a download, and what it says is wrong with a machine."""

import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import threading
import unittest
from unittest import mock

from tree import Tree

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
import download_size  # pylint: disable=wrong-import-position

# What the script and the stubs call, apart from what a test leaves out or replaces.
COMMANDS = ("awk bash c++ cat cmake cp cut dirname du env flock git grep head id mkdir ninja paste"
            " python3 rm sed sort sudo tail").split()
MIB = 1024 * 1024
NO_NETWORK = "echo \"WARNING: Retrying after connection broken by 'Temporary failure in name resolution'\"; exit 1"


class SetupTree(Tree):
    """A copy of scripts, and a PATH where a test can replace each command."""

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
        self.free(100_000)
        self.stub("apt-get", "echo 'nothing may be installed here' >&2; exit 1")

    def stub(self, command, script):
        path = self.bin / command
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def free(self, mib):
        self.stub("df", f"echo header; echo disk 0 0 {mib * 1024} 0% /")

    def libtorch(self, version, folder="torch"):
        include = f"{folder}/include/torch"
        numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
        self.write(f"{include}/headeronly/version.h", "".join(f"#define TORCH_VERSION_{n} {v}\n" for n, v in numbers))
        self.write(f"{include}/csrc/api/include/torch/torch.h", "")
        return str(self.root / folder)

    def run_setup(self, *flags, **environment):
        environment = {"PATH": str(self.bin), "HOME": str(self.root), **environment}
        output = self.root / "output"  # Stubs write to it, too: it shows what came first.
        with open(output, "w", encoding="utf-8"), open(output, "a", encoding="utf-8") as stdout:
            result = subprocess.run([self.root / "scripts" / "setup", *flags], env=environment, stdin=subprocess.DEVNULL,
                                    stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        result.stdout = output.read_text(encoding="utf-8")
        return result

    def assert_fails_with(self, sentence, *flags, **environment):
        result = self.run_setup(*flags, **environment)
        self.assertEqual(result.returncode, 1, result)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn(sentence, result.stderr)
        return result.stdout

    def assert_in_order(self, output, *texts):
        for text in texts:
            self.assertIn(text, output)
            output = output.split(text, 1)[1]


class Setup(SetupTree):
    def test_takes_the_libtorch_named_by_fsdp_torch(self):
        result = self.run_setup(FSDP_TORCH=self.libtorch("2.12.1"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("LibTorch 2.12.1 at", result.stdout)
        self.assertIn("the test that starts ranks with torchrun", result.stdout)
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

    def test_goes_on_without_an_optional_package(self):
        self.stub("dpkg-query", "[[ $* == *ccache ]] || echo installed")
        without_sudo = {"id": "echo 1000", "sudo": "exit 1"}
        without_network = {"id": "echo 0", "apt-get": "echo 'E: Failed to fetch x'; exit 100"}
        for stubs, why in ((without_sudo, "sudo asks for a password"), (without_network, "no network")):
            with self.subTest(why):
                for command, script in stubs.items():
                    self.stub(command, script)
                result = self.run_setup(FSDP_TORCH=self.libtorch("2.12.1"))
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertIn(f"note: going on without ccache, which is optional: {why}", result.stdout)
                self.assertIn("ready", result.stdout)

    def test_installs_what_few_tests_need_one_by_one(self):
        self.stub("dpkg-query", "[[ $* == *clang* || $* == *doxygen ]] || echo installed")
        self.stub("id", "echo 0")
        self.stub("apt-get", f'echo "CALL $*" >>{self.root}/output\n'
                  "case $* in *--yes*clang-rt-dev*) echo 'E: Unable to locate package libclang-rt-dev'; exit 100 ;; esac")
        result = self.run_setup(FSDP_TORCH=self.libtorch("2.12.1"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assert_in_order(result.stdout, " --yes clang\n", " --yes libclang-rt-dev\n",
                             "note: going on without libclang-rt-dev, which is optional: apt-get does not know",
                             " --yes doxygen\n", "ready")

    def test_installs_the_optional_package_with_the_others(self):
        self.stub("dpkg-query", "[[ $* != *ccache && $* != *libgtest-dev ]] && echo installed")
        self.stub("id", "echo 0")
        self.stub("apt-get", f'echo "CALL $*" >>{self.root}/output; [[ $* != *assume-no* ]] || echo "Need to get 7 MB"')
        result = self.run_setup(FSDP_TORCH=self.libtorch("2.12.1"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assert_in_order(result.stdout, "missing packages: libgtest-dev ccache;", " update\n", " --assume-no ",
                             "apt-get: Need to get 7 MB", " --yes libgtest-dev ccache\n", "ready")

    def test_says_that_there_is_no_disk_for_a_build_before_anything_else(self):
        self.free(1400)
        self.stub("dpkg-query", "exit 1")
        output = self.assert_fails_with("no disk: 1500 MiB are needed for a release build",
                                        FSDP_TORCH=self.libtorch("2.12.1"))
        self.assertEqual(output, "")

    def test_a_build_that_is_there_needs_its_disk_no_more(self):
        self.write("build/release/program", "")
        self.free(0)
        self.stub("du", r"echo -e 1200\\tx")
        self.assert_fails_with("no disk: 300 MiB", FSDP_TORCH=self.libtorch("2.12.1"))
        self.stub("du", r"echo -e 1600\\tx")
        self.assertEqual(self.run_setup(FSDP_TORCH=self.libtorch("2.12.1")).returncode, 0)


# A Python whose venv makes a folder with a copy of it, and whose pip tells its calls and then does what `pip` says.
PYTHON = r"""
case "$*" in
  -V) echo "{version}" ;;
  "-m venv"*)
    echo "CALL venv" >>{root}/output
    rm -rf "$4"
    mkdir -p "$4/bin"
    cp "$0" "$4/bin/python" ;;
  "-m pip "*--version) ;;
  "-m pip "*)
    all=$*
    echo "CALL pip ${{all#*--no-cache-dir }} in $TMPDIR" >>{root}/output
    {pip} ;;
  -c*pip.__version__*) {pip_is_new} ;;
  -c*cuda-toolkit) {toolkit} ;;
  -c*) {imports} ;;
  *) exec {python} "$@" ;;
esac
"""
# Installs what lies in the folder site into the environment whose Python this is.
PIP = r"""
case "$*" in
  *--dry-run*) cp {root}/plan.json {root}/build/setup-report.json ;;
  *" torch=="*) mkdir -p "${0%/bin/python}/lib/python3.11/site-packages"; cp -r {root}/site/. "$_" ;;
esac
"""


class VirtualEnvironment(SetupTree):
    """scripts/setup from the disk check before .venv to the end, with a Python and a pip that fetch nothing."""

    def setUp(self):
        super().setUp()
        script = self.root / "scripts" / "setup"  # which also looks for the system's python3
        text = script.read_text(encoding="utf-8").replace("/usr/bin/python3", "/nowhere/python3")
        script.write_text(text, encoding="utf-8")
        self.stub("c++", "cat >/dev/null")
        self.python()
        self.libtorch("2.13.0", "site/torch")
        self.write("site/torch-2.13.0.dist-info/RECORD", "")
        self.plan(("torch", "2.13.0", 200), ("numpy", "2.4.6", 15))

    def python(self, pip=PIP, **changes):
        stub = {"version": "Python 3.11.7", "pip_is_new": "true", "toolkit": "exit 1", "imports": "true",
                "root": self.root, "python": sys.executable, "pip": pip.replace("{root}", str(self.root)), **changes}
        self.stub("python3", PYTHON.format(**stub))

    def plan(self, *packages):
        """What pip finds: names, versions and MiB on disk, or None for a server that does not answer."""
        install = []
        for name, version, mib in packages:
            url = "http://127.0.0.1:1/file.whl"
            if mib:
                with open(self.root / f"{name}.whl", "wb") as file:
                    file.truncate(mib * MIB)
                url = (self.root / f"{name}.whl").as_uri()
            install.append({"metadata": {"name": name, "version": version}, "download_info": {"url": url}})
        self.write("plan.json", json.dumps({"install": install}))

    def assert_succeeds(self, *flags):
        result = self.run_setup(*flags)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertTrue(result.stdout.endswith("setup: ready\n"), result.stdout)
        return result.stdout

    def test_tells_sizes_before_it_installs(self):
        output = self.assert_succeeds()
        self.assert_in_order(
            output, "making the virtual environment .venv with Python 3.11.7\n", "CALL venv",
            "looking up what torch 2.13.0 and numpy need", "CALL pip install --quiet --dry-run",
            "about to install into .venv", "torch 2.13.0: 200 MiB on disk", "1 smaller packages", "together 215 MiB",
            "CALL pip install --quiet torch==2.13.0 numpy", "LibTorch 2.13.0 at .venv/lib/python3.11/site-packages")
        self.assertEqual(output.count("CALL"), 3, output)

    def test_adds_what_tests_compare_with_and_goes_on_without_it(self):
        self.assert_succeeds()
        packages = {"safetensors": ("1 MiB", "--no-deps safetensors"), "transformers": ("25 MiB", "transformers==5"),
                    "tensorboard": ("25 MiB", "tensorboard==2"), "matplotlib": ("25 MiB", "matplotlib==3")}
        for name, (size, arguments) in packages.items():
            for pip, said in (("true", "ready"), (NO_NETWORK, f"note: going on without {name}")):
                self.python(pip, imports=f"[[ $* != *{name}* ]]")
                shutil.copy(self.bin / "python3", self.root / ".venv/bin/python")
                output = self.assert_succeeds()
                self.assert_in_order(output, f"installing {name} into .venv (about {size})",
                                     f"CALL pip install --quiet --retries 1 {arguments}", said)
                self.assertEqual(output.count("CALL"), 1, output)

    def test_looks_up_and_installs_in_a_folder_beside_venv_that_is_gone_afterwards(self):
        folder = self.root / "build" / "tmp"
        for pip, calls in ((PIP, 2), (PIP + "exit 1", 1)):
            shutil.rmtree(self.root / ".venv", ignore_errors=True)
            self.python(pip.replace("case", f"echo partial >{folder}/wheel; case"))
            self.assertEqual(self.run_setup().stdout.count(f" in {folder}\n"), calls)
            self.assertFalse(folder.exists())

    def test_announces_a_newer_pip_and_the_headers_of_cuda(self):
        self.python(pip_is_new="exit 1", toolkit="echo 13.0.2")
        self.assert_in_order(
            self.assert_succeeds(), "installing a newer pip into .venv (about 2 MiB)",
            "CALL pip install --quiet --upgrade pip>=23.3", "CALL pip install --quiet torch==2.13.0",
            "installing cuda-toolkit[cccl,crt] 13.0.2 into .venv (about 4 MiB)",
            "CALL pip install --quiet cuda-toolkit[cccl,crt]==13.0.2")

    def test_cuda_is_the_gpu_build_of_another_release_in_an_environment_of_its_own(self):
        self.libtorch("2.11.0", "site/torch")
        self.plan(("torch", "2.11.0", 200), ("nvidia-nccl-cu13", "2.28.9", 100))
        self.python(toolkit="echo 13.0.2")
        self.assert_in_order(
            self.assert_succeeds("--cuda"), "making the virtual environment build/cuda-venv with", "CALL venv",
            "about to install into build/cuda-venv", "together 300 MiB (GPU build",
            "CALL pip install --quiet torch==2.11.0 numpy", "CALL pip install --quiet cuda-toolkit[cccl,crt]==13.0.2",
            "LibTorch 2.11.0 at build/cuda-venv/lib")
        self.assertFalse((self.root / ".venv").exists())
        self.assertEqual(self.assert_succeeds("--cuda"), "setup: ready\n")

    def test_cuda_refuses_a_cpu_build_before_it_installs(self):
        self.plan(("torch", "2.11.0+cpu", 200))
        self.assertNotIn("CALL pip install --quiet torch", self.assert_fails_with("no GPU build", "--cuda"))

    def test_cuda_needs_disk_for_one_build(self):
        self.free(1400)
        self.assert_fails_with("no disk: 1500 MiB are needed for a cuda build", "--cuda")
        self.free(2500)  # 1 + 200 MiB of wheels, 3 times as much of files, 300 MiB and the build
        self.plan(("torch", "2.11.0", 200))
        self.assert_fails_with("no disk: 2604 MiB are needed for torch and the builds", "--cuda")

    def test_goes_on_without_the_headers_of_cuda(self):
        self.python(PIP + "[[ $* != *cuda-toolkit* ]]", toolkit="echo 13.0.2")
        self.assertIn("fsdp is built without its NCCL backend", self.assert_succeeds())

    def test_says_that_there_is_no_disk_before_it_asks_pip(self):
        self.free(2900)
        self.assertEqual(self.assert_fails_with("no disk: 3000 MiB are needed for the builds alone"), "")
        self.assertFalse((self.root / ".venv").exists())

    def test_says_that_there_is_no_disk_for_torch_before_it_downloads(self):
        self.free(4100)
        output = self.assert_fails_with("no disk: 4164 MiB are needed for torch and the builds, 4100 MiB are free")
        self.assertIn("together 215 MiB", output)
        self.assertNotIn("CALL pip install --quiet torch", output)

    def test_an_unknown_size_counts_as_a_gpu_build(self):
        self.free(15_000)
        self.plan(("torch", "2.13.0", None))
        output = self.assert_fails_with("no disk: 15304 MiB are needed")
        self.assertIn("together unknown, counted as 3000 MiB", output)
        self.assertNotIn("CALL pip install --quiet torch", output)

    def test_says_that_there_is_no_network_for_pip(self):
        for when in ("--upgrade", "--dry-run", "--quiet torch=="):
            with self.subTest(when):
                shutil.rmtree(self.root / ".venv", ignore_errors=True)
                self.python(f"if [[ $* == *{when!r}* ]]; then {NO_NETWORK}; fi\n{PIP}", pip_is_new="false")
                output = self.assert_fails_with("no network: pip cannot reach its package index")
                self.assertIn(when, output.splitlines()[-1])

    def test_says_what_pip_says(self):
        self.python("echo 'ERROR: No matching distribution found for torch==2.13.0'; exit 1")
        self.assert_fails_with("pip failed: ERROR: No matching distribution found for torch==2.13.0")
        self.python("echo 'ERROR: [Errno 28] No space left on device'; exit 1")
        shutil.rmtree(self.root / ".venv")
        self.assert_fails_with("no disk: there is no room for torch")

    def test_says_that_torch_came_without_libtorch(self):
        shutil.rmtree(self.root / "site" / "torch")
        self.assert_fails_with("pip installed torch, but no LibTorch was found")

    def test_makes_a_broken_environment_anew(self):
        self.assert_succeeds()
        for broken in ("#!/bin/bash\nexit 1\n", "#!/nowhere/python\n", None):
            with self.subTest(broken):
                python = self.root / ".venv" / "bin" / "python"
                python.unlink()
                if broken:
                    python.write_text(broken, encoding="utf-8")
                    python.chmod(0o755)
                self.assert_in_order(self.assert_succeeds(), "making the virtual environment .venv anew, as its Python",
                                     "CALL venv", "together 215 MiB", "CALL pip install --quiet torch")

    def test_installs_again_what_was_left_half_installed(self):
        self.assert_succeeds()
        (self.root / ".venv/lib/python3.11/site-packages/torch-2.13.0.dist-info/RECORD").unlink()
        output = self.assert_succeeds()
        self.assertIn("CALL pip install --quiet torch", output)
        self.assertNotIn("CALL venv", output)

    def test_says_that_it_cannot_make_the_environment(self):
        self.stub("python3", '[[ $* != "-m venv"* ]] || { echo "Error: no room"; exit 1; }')
        self.assert_fails_with("cannot make .venv: Error: no room")

    def test_downloads_nothing_when_all_is_there(self):
        self.assert_succeeds()
        self.free(1600)  # torch would need more
        self.assertEqual(self.assert_succeeds(), "setup: ready\n")

    def test_says_that_python_is_too_old(self):
        self.python(version="Python 3.8.10", imports="[[ $* != *version_info* ]]")
        self.assert_fails_with("Python 3.8.10: Python 3.10 or newer")


class Answer(http.server.BaseHTTPRequestHandler):
    """Tells the size that a path names, or no size."""

    def do_HEAD(self):
        size = self.path.strip("/")
        self.send_response(200 if size else 404)
        if size.isdigit():
            self.send_header("Content-Length", size)
        self.end_headers()

    def log_message(self, *_):
        pass


class DownloadSize(Tree):
    def setUp(self):
        super().setUp()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        for patch in (mock.patch.dict("os.environ", {"no_proxy": "127.0.0.1"}),
                      mock.patch.object(download_size, "certificates", lambda: None)):
            patch.start()
            self.addCleanup(patch.stop)

    def describe(self, *packages):
        """Packages are name, version and what the server's URL ends with."""
        url = f"http://127.0.0.1:{self.server.server_port}"
        return download_size.describe([{"metadata": {"name": name, "version": version},
                                        "download_info": {"url": f"{url}/{end}"}} for name, version, end in packages])

    def test_asks_the_server_for_sizes(self):
        mib, lines = self.describe(("torch", "2.13.0", 500 * MIB), ("sympy", "1", 6 * MIB), ("numpy", "2", 15 * MIB))
        self.assertEqual(mib, 522)
        self.assertEqual(lines, ["  torch 2.13.0: 500 MiB to download", "  2 smaller packages", "  together 521 MiB"])

    def test_names_the_kind_of_build(self):
        self.assertIn("(CPU build)", self.describe(("torch", "2.13.0+cpu", 200 * MIB))[1][-1])
        for name in ("nvidia-cublas", "cuda-bindings"):
            self.assertIn("together 700 MiB (GPU build; a CPU one is much smaller",
                          self.describe(("torch", "2.13.0", 500 * MIB), (name, "13.0", 200 * MIB))[1][-1])

    def test_counts_a_whole_build_where_the_size_of_a_large_package_is_unknown(self):
        for name in ("torch", "nvidia-cudnn-cu13", "triton"):
            with self.subTest(name):
                mib, lines = self.describe((name, "2.13.0", "no-size"), ("numpy", "2.4", 15 * MIB))
                self.assertEqual(mib, 3001)
                self.assertIn(f"  {name} 2.13.0: size unknown", lines)
                self.assertIn("  together unknown, counted as 3000 MiB", lines[-1])
        mib, lines = self.describe(("torch", "2.13.0+cpu", ""))
        self.assertEqual((mib, lines[-1]), (301, "  together unknown, counted as 300 MiB (CPU build)"))

    def test_never_counts_less_than_what_is_known(self):
        mib, lines = self.describe(("torch", "2.13.0", ""), ("nvidia-cublas", "13.0", 4000 * MIB))
        self.assertEqual(mib, 4001)
        self.assertIn("together at least 4000 MiB (GPU build", lines[-1])

    def test_an_unknown_small_package_changes_little(self):
        mib, lines = self.describe(("torch", "2.13.0", 200 * MIB), ("jinja2", "3.1", ""))
        self.assertEqual((mib, lines[-1]), (201, "  together at least 200 MiB"))

    def test_sizes_that_cannot_be_found_out_are_unknown(self):
        for url in ("file:///nowhere/a.whl", "http://127.0.0.1:1/a.whl", "http://user:word@127.0.0.1/a.whl", "a.whl"):
            with self.subTest(url):
                self.assertIsNone(download_size.size_of(url, None))


if __name__ == "__main__":
    unittest.main()
