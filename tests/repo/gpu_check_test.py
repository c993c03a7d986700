"""scripts/gpu_check: what the end of a part means, limits, figures, table, JSON, and what goes into a bundle."""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools" / "gpu_check"), str(ROOT / "bench")]
sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
import bundle
import limited
import machine
import main
import parts
import readers
import report

LOSSES = [9.1, 9.0, 8.9]
STEP = json.dumps({"engine": "fsdp", "ms_per_step": 3.2, "tokens_per_s": 1000, "device_mb": 500, "losses": LOSSES})
SKIPPED = """\
/tests/cuda_training_test.cpp:66: Skipped
no CUDA device is present
[  SKIPPED ] CudaTraining.TwoRanksEqualTheUnshardedRun (0 ms)
[==========] 2 tests from 1 test suite ran. (0 ms total)
[  PASSED  ] 0 tests.
[  SKIPPED ] 2 tests, listed below:
"""
ONE_GPU = """\
needs 2 CUDA devices, found 1
[  SKIPPED ] CudaTraining.TwoRanksEqualTheUnshardedRun (0 ms)
[  PASSED  ] 3 tests.
[  SKIPPED ] 2 tests, listed below:
"""
GPT = """\
Training on {device}
step 20: validation loss 3.1000 nats per character, perplexity 22.20
step 60: validation loss {last} nats per character, perplexity 12.18
61440 characters in 2 s, 30720 characters/s on 1 rank; validation loss 2.5 nats per character, perplexity 12.1825
"""
MEMCHECK = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: {} errors\n"
RACECHECK = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
LDD = """\
\tlinux-vdso.so.1 (0x00007ffd)
\tlibtorch_cuda.so => /venv/site-packages/torch/lib/libtorch_cuda.so (0x00007f11)
\tlibcudart.so.13 => /venv/site-packages/nvidia/cu13/lib/libcudart.so.13 (0x00007f12)
\tlibcrypto.so.3 => /lib/x86_64-linux-gnu/libcrypto.so.3 (0x00007f13)
\tlibstdc++.so.6 => /lib/x86_64-linux-gnu/libstdc++.so.6 (0x00007f14)
\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f15)
\tlibcuda.so.1 => not found
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f16)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f17)
"""


def part(read=readers.step, command=("true",), limit=30):
    return parts.Part("a part", limit, list(command), read)


def judge(output, status=0, has_device=True, read=readers.step):
    return parts.judge(part(read), limited.Ended(status, output, 2.0), has_device)


class Limits(unittest.TestCase):
    def run_shell(self, script, limit):
        return limited.run(["sh", "-c", script], limit, os.environ)

    def test_output_and_status_of_what_ends_in_time(self):
        ended = self.run_shell("echo out; echo err >&2; exit 3", 30)
        self.assertEqual((ended.status, ended.output), (3, "out\nerr\n"))

    def test_what_hangs_is_ended_with_its_children_and_its_output_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            held = pathlib.Path(folder) / "held"
            os.mkfifo(held)
            # Both ignore the request to end, and hold the pipe's end until they are gone.
            with mock.patch.object(limited, "PATIENCE", 0.2):
                ended = self.run_shell(f"trap '' TERM; exec 9<>{held}; sleep 1000 & echo begun; wait", 1)
            self.assertEqual((ended.status, ended.output), (None, "begun\n"))
            reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
            os.set_blocking(reader, True)
            self.assertEqual(os.read(reader, 1), b"")  # the end of the file: nobody has it open for writing
            os.close(reader)

    def test_a_program_that_is_not_there_is_an_end_too(self):
        ended = limited.run(["/nowhere/program"], 5, os.environ)
        self.assertEqual(ended.status, 127)
        self.assertIn("/nowhere/program", ended.output)

    def run_parts(self, *all_parts, seconds=60):
        told = []
        results = main.run_parts(all_parts, time.monotonic() + seconds, os.environ, True,
                                 lambda results: told.append(len(results)))
        self.assertEqual(told, list(range(1, len(all_parts) + 1)))
        return [result.outcome for result in results]

    def test_every_part_has_a_result_whatever_the_others_do(self):
        hangs = part(command=("sleep", "100"), limit=0.2)
        prints = part(command=("echo", STEP))
        not_there = part(command=())
        with mock.patch.object(limited, "PATIENCE", 0.2):
            self.assertEqual(self.run_parts(hangs, prints, not_there, part()),
                             [parts.HUNG, parts.PASSED, parts.NOT_THERE, parts.FAILED])

    def test_what_does_not_fit_into_the_whole_time_is_left_out(self):
        self.assertEqual(self.run_parts(part(command=("echo", STEP)), seconds=1), [parts.LEFT_OUT])

    def test_the_whole_time_bounds_a_part_that_may_take_longer(self):
        with mock.patch.object(main, "LEAST_SECONDS", 0), mock.patch.object(limited, "PATIENCE", 0.2):
            self.assertEqual(self.run_parts(part(command=("sleep", "100"), limit=100), seconds=0.3), [parts.HUNG])


class Judgements(unittest.TestCase):
    def test_what_hung_says_when_it_was_killed(self):
        result = judge("begun", status=None)
        self.assertEqual((result.outcome, result.why), (parts.HUNG, "killed after 2 s"))

    def test_a_program_that_refuses_or_takes_the_cpu_finds_no_device(self):
        refusal = 'fsdp-bench: [fsdp] init_process_group: the backend "nccl" is not available: LibTorch sees no CUDA device here'
        cpu = GPT.format(device="cpu", last=2.5)
        for output, status in ((refusal, 1), ("no CUDA device is present", 1), (SKIPPED, 0), (cpu, 0)):
            with self.subTest(output):
                self.assertEqual(judge(output, status, has_device=False).outcome, parts.NO_DEVICE)
                result = judge(output, status, has_device=True)
                self.assertEqual((result.outcome, result.why), (parts.FAILED, "does not see the GPU that torch sees"))

    def test_a_program_that_does_not_start_has_failed_also_without_a_device(self):
        result = judge("gpt: error while loading shared libraries: libcrypto.so.3", 127, has_device=False)
        self.assertEqual((result.outcome, result.why),
                         (parts.FAILED, "status 127: gpt: error while loading shared libraries: libcrypto.so.3"))
        self.assertEqual(judge(GPT.format(device="cpu", last=2.5), -11, has_device=False).outcome, parts.FAILED)

    def test_success_without_a_result_is_a_failure(self):
        for output in ("", "done", STEP + "\n" + STEP, STEP.replace("device_mb", "pss_mb"), STEP.replace("9.0", "NaN")):
            with self.subTest(output):
                result = judge(output)
                self.assertEqual(result.outcome, parts.FAILED)
                self.assertIn("printed no result", result.why)


class Figures(unittest.TestCase):
    def test_of_the_tests_on_one_gpu(self):
        self.assertEqual(judge(ONE_GPU, read=readers.cuda_tests).figures, {"passed": 3, "skipped": 2})
        self.assertEqual(judge("[  PASSED  ] 0 tests.", read=readers.cuda_tests).outcome, parts.FAILED)

    def test_of_steps(self):
        self.assertEqual(judge("a warning\n" + STEP).figures,
                         {"ms_per_step": 3.2, "tokens_per_s": 1000, "device_mb": 500, "losses": LOSSES})
        versus = json.dumps({"ratio": 1.1, "ratio_95": [1.0, 1.2], "ms_per_step": [3.3, 3.0], "ratios": [1.1]})
        self.assertEqual(judge(versus, read=readers.versus).figures,
                         {"ratio": 1.1, "ratio_95": [1.0, 1.2], "ms_per_step": [3.3, 3.0]})

    def test_of_trainings(self):
        figures = judge(GPT.format(device="cuda:0", last="2.5000"), read=readers.gpt).figures
        self.assertEqual(figures, {"seconds": 2.0, "perplexity": 12.1825, "losses": [3.1, 2.5]})
        for last in ("3.1000", "nan"):
            self.assertEqual(judge(GPT.format(device="cuda:0", last=last), read=readers.gpt).outcome, parts.FAILED)
        mnist = ("Training on cuda:0\nTrain Epoch: 1  Loss: 0.5\n"
                 "Test set: Average loss: 0.1, Accuracy: 9/10 (90.00%)\nElapsed: 1.50 s\n")
        self.assertEqual(judge(mnist, read=readers.mnist).figures, {"seconds": 1.5, "accuracy": 90.0, "losses": [0.5]})

    def test_of_the_sanitizer(self):
        self.assertEqual(judge(MEMCHECK.format(0), read=readers.memcheck).figures, {"errors": 0})
        self.assertEqual(judge(MEMCHECK.format(2), parts.SANITIZER_FOUND_ERRORS, read=readers.memcheck).why,
                         "status 9: ========= ERROR SUMMARY: 2 errors")
        self.assertEqual(judge(RACECHECK, read=readers.racecheck).figures, {"hazards": 0})
        self.assertEqual(judge(STEP, read=readers.memcheck).outcome, parts.FAILED)

    def compare(self, *theirs):
        ours = parts.Result("step 9M", parts.PASSED, figures=json.loads(STEP))
        others = [parts.Result("step 9M, FSDP2", outcome, figures=figures) for outcome, figures in theirs]
        return list(parts.compare_steps([ours, *others]))

    def test_of_a_step_beside_fsdp2(self):
        theirs = {"tokens_per_s": 800, "device_mb": 1000, "losses": [9.1, 9.0, 8.9001]}
        result, = self.compare((parts.PASSED, theirs))
        self.assertEqual((result.name, result.outcome), ("step 9M, ours : FSDP2", parts.PASSED))
        self.assertEqual(result.figures, {"tokens_per_s": 1.25, "device_mb": 0.5, "losses_differ": 1.1e-5})
        result, = self.compare((parts.PASSED, theirs | {"losses": [9.1, 9.0, 8.8]}))
        self.assertEqual((result.outcome, result.why), (parts.FAILED, "losses differ"))
        self.assertEqual(self.compare((parts.FAILED, {})), [])
        self.assertEqual(self.compare(), [])


class Reports(unittest.TestCase):
    RESULTS = [parts.Result("CUDA tests", parts.PASSED, "", 31.25, {"passed": 3, "skipped": 2}, "x" * 10_000),
               parts.Result("gpt", parts.HUNG, "killed after 60 s", 60.0, {}, "begun")]

    def test_table_has_a_line_for_each_part(self):
        self.assertEqual(report.as_table(self.RESULTS).splitlines(),
                         ["part        outcome  seconds",
                          "CUDA tests  passed   31.2     passed 3, skipped 2",
                          "gpt         hung     60.0     killed after 60 s"])
        self.assertEqual(report.as_line(self.RESULTS[1]), "gpu_check: gpt: hung, 60.0 s; killed after 60 s")

    def test_json_has_bundle_machine_and_the_end_of_each_output(self):
        found = json.loads(report.as_json({"torch": "2.11.0"}, {"devices": ["H100"]}, self.RESULTS, 91.26))
        self.assertEqual((found["bundle"]["torch"], found["machine"]["devices"], found["seconds"]),
                         ("2.11.0", ["H100"], 91.3))
        self.assertEqual([(entry["name"], entry["outcome"]) for entry in found["parts"]],
                         [("CUDA tests", "passed"), ("gpt", "hung")])
        self.assertEqual(found["parts"][0]["figures"], {"passed": 3, "skipped": 2})
        self.assertEqual(found["parts"][0]["output"], "x" * report.OUTPUT_KEPT)

    def test_status_is_that_of_the_worst_end(self):
        for outcomes, status in (([parts.PASSED, parts.NOT_THERE], 0), ([parts.PASSED, parts.NO_DEVICE], 77),
                                 ([parts.NO_DEVICE, parts.FAILED], 1), ([parts.HUNG], 1), ([parts.LEFT_OUT], 1)):
            with self.subTest(outcomes):
                self.assertEqual(report.status([parts.Result("", outcome) for outcome in outcomes]), status)


class Machines(unittest.TestCase):
    BUNDLE = {"torch": "2.11.0+cu130", "cuda": "13.0"}

    def why_unfit(self, torch, cuda):
        return machine.why_unfit({"torch": torch, "cuda": cuda}, self.BUNDLE)

    def test_a_bundle_runs_with_its_own_release_of_torch_only(self):
        self.assertEqual(self.why_unfit("2.11.0", "13.0"), "")
        self.assertEqual(self.why_unfit("2.12.0+cu130", "13.0"), "the bundle is for torch 2.11.0 with CUDA 13.0, this "
                         "machine has torch 2.12.0 with CUDA 13.0")
        self.assertIn("with CUDA 12.8", self.why_unfit("2.11.0", "12.8"))
        self.assertIn("with no CUDA", self.why_unfit("2.11.0+cpu", None))

    def test_a_python_without_torch_is_named(self):
        with mock.patch.object(machine, "PROBE", "import no_such_torch"):
            error = machine.why_unfit(machine.probe(), self.BUNDLE)
        self.assertIn(f"{sys.executable} cannot import torch", error)
        self.assertIn("no_such_torch", error)

    def test_programs_find_the_bundles_libraries_then_torchs_then_its_packages(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": "/driver"}):
            site = pathlib.Path(folder)
            for name in ("torch", "nvidia/nccl/lib", "nvidia/cu13/lib"):
                (site / name).mkdir(parents=True)
            found = machine.library_path(pathlib.Path("/bundle"), {"folder": str(site / "torch")})
        self.assertEqual(found.split(":"), ["/bundle/lib", f"{site}/torch/lib", f"{site}/nvidia/cu13/lib",
                                            f"{site}/nvidia/nccl/lib", "/driver"])

    def test_each_part_has_another_name_and_all_limits_are_below_the_whole_time(self):
        everything = parts.all_parts(pathlib.Path("/bundle"), "/bin/compute-sanitizer")
        names = [entry.name for entry in everything]
        self.assertEqual(len(set(names)), len(names))
        self.assertLess(max(entry.limit for entry in everything), main.SECONDS)
        self.assertLess(main.SECONDS + 2 * limited.PATIENCE, 480)
        without = parts.all_parts(pathlib.Path("/bundle"), None)
        self.assertEqual([entry.name for entry in without if not entry.command], ["memcheck", "racecheck"])


class Bundle(unittest.TestCase):
    def test_carries_what_is_neither_glibcs_nor_in_torchs_packages(self):
        libraries = bundle.libraries_of(LDD)
        self.assertNotIn("libcuda.so.1", libraries)
        self.assertEqual(bundle.carried(libraries, pathlib.Path("/venv/site-packages/torch")),
                         ["/lib/x86_64-linux-gnu/libcrypto.so.3", "/lib/x86_64-linux-gnu/libstdc++.so.6"])

    def test_a_build_without_cuda_is_refused(self):
        for cpu_build in (LDD.replace("libtorch_cuda", "libtorch_cpu"), ""):
            with mock.patch.object(bundle, "run", return_value=cpu_build), self.assertRaises(SystemExit) as error:
                bundle.make(pathlib.Path("/build"), pathlib.Path("/nowhere/bundle"), ["gpt"])
            self.assertIn("not linked with a GPU build", str(error.exception))


class WholeRun(unittest.TestCase):
    FOUND = {"torch": "2.11.0", "folder": "/venv/torch", "cuda": "13.0", "nccl": "2.28.9", "devices": []}

    def test_writes_one_file_prints_the_table_and_returns_the_status(self):
        refuses = part(command=("sh", "-c", "echo LibTorch sees no CUDA device here; exit 1"))
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed, \
                mock.patch.object(machine, "probe", return_value=self.FOUND), \
                mock.patch.object(parts, "all_parts", return_value=[refuses, part(command=())]):
            out = pathlib.Path(folder) / "new"
            self.assertEqual(main.check({"torch": "2.11.0", "cuda": "13.0"}, out, 60), 77)
            self.assertEqual([entry.name for entry in out.iterdir()], ["gpu_check.json"])
            outcomes = [entry["outcome"] for entry in json.loads((out / "gpu_check.json").read_text())["parts"]]
        self.assertEqual(outcomes, [parts.NO_DEVICE, parts.NOT_THERE])
        self.assertIn("GPUs: none", printed.getvalue())
        self.assertRegex(printed.getvalue(), r"\na part +no device +\d+\.\d +starts, and finds no CUDA device\n")

    def test_another_release_of_torch_is_refused_before_anything_runs(self):
        with mock.patch.object(machine, "probe", return_value=self.FOUND), self.assertRaises(SystemExit) as error:
            main.check({"torch": "2.13.0", "cuda": "13.0"}, pathlib.Path("/nowhere"), 60)
        self.assertIn("the bundle is for torch 2.13.0", str(error.exception))


if __name__ == "__main__":
    unittest.main()
