"""Tests scripts/gpu_check with a bundle of programs that find no GPU, and with a bundle that lacks a program."""

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = "cuda_tests", "fsdp-bench", "fsdp-mnist", "fsdp-gpt", "fsdprun"
TORCH = """
import types
__version__, version = "2.11.0+cu130", types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(device_count=lambda: 0, nccl=types.SimpleNamespace(version=lambda: (2, 28, 9)))
"""


class GpuCheck(unittest.TestCase):
    def test_ours_is_compared_with_each_other_step_that_passed_and_bf16_with_the_peak(self):
        sys.path += [str(ROOT / "tools/gpu_check"), str(ROOT / "bench")]
        parts = importlib.import_module("parts")
        names = [part.name for part in parts.all_parts(ROOT, None)]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(names[0], "CUDA tests")
        results = [parts.Result(name, parts.PASSED, figures={"tokens_per_s": 1e5, "device_mb": 100, "losses": [1.0]})
                   for name in names if name.startswith("step 124M bf16")]
        self.assertEqual(len(results), 4)
        parts.add_utilisation(results, ["NVIDIA H100 80GB HBM3"])
        self.assertAlmostEqual(results[0].figures["mfu"], 0.086, delta=0.003)  # 0.85 of 989 TFLOP/s
        compared = {result.name: result.figures["tokens_per_s"] for result in parts.compare_steps(results)}
        self.assertEqual(compared, {f"step 124M bf16, ours : {other}": 1.0 for other in ("FSDP2", "plain", "eager")})

    def test_tells_of_each_part_how_it_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            bundle = pathlib.Path(folder)
            for name in ("tools/gpu_check", "bench"):
                shutil.copytree(ROOT / name, bundle / name)
            (bundle / "bundle.json").write_text(json.dumps({"torch": "2.11.0", "cuda": "13.0"}), encoding="utf-8")
            (bundle / "bench/peers/gpt_step.py").write_text("raise SystemExit('no CUDA device')", encoding="utf-8")
            programs = {f"bin/{name}": "#!/bin/sh\necho no CUDA device is present; exit 1\n" for name in PROGRAMS}
            for path, text in (programs | {"torch/__init__.py": TORCH}).items():
                (bundle / path).parent.mkdir(exist_ok=True)
                (bundle / path).write_text(text, encoding="utf-8")
                (bundle / path).chmod(0o755)
            for status, last in ((77, "no device"), (1, "failed")):
                command = [ROOT / "scripts/gpu_check", "--run", bundle, "--out", bundle]
                done = subprocess.run(command, env=os.environ | {"PYTHONPATH": folder}, capture_output=True, text=True,
                                      timeout=120, check=False)
                self.assertEqual(done.returncode, status, done)
                parts = json.loads((bundle / "gpu_check.json").read_text(encoding="utf-8"))["parts"]
                self.assertEqual(parts[0]["outcome"], last)
                self.assertEqual({part["outcome"] for part in parts[1:]} - {"not there"}, {"no device"})
                self.assertRegex(done.stdout, rf"\nCUDA tests +{last} ")
                (bundle / "bin/cuda_tests").unlink(missing_ok=True)


if __name__ == "__main__":
    unittest.main()
