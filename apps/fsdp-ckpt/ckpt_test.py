"""Tests fsdp-ckpt: python3 ckpt_test.py PROGRAM GPT PYTHON. If PYTHON has the package safetensors, more tests run."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = GPT = PYTHON = ""
TENSORS = {"w": [[1.0, -2.0], [3.5, 0.25], [5.0, 6.0], [7.0, 1e-3], [9.0, 10.0]], "b": [[0.1], [0.2]], "s": 4.0}


NONE = float("nan")
# Each entry has the tensors of two files, their dtype and its struct code, and the output of `diff --json`.
DIFFERENCES = (
    (TENSORS, {"w": [[1.0, -2.0], [3.5, 0.25], [5.0, 6.5], [7.0, 1e-3], [9.0, 10.25]], "b": [0.1], "t": 1.0},
     "F32", "f", {"b": "sizes [2, 1] and [1]", "s": "missing in the second", "t": "missing in the first", "w": 0.5}),
    ({"count": 2**60}, {"count": 2**60 + 1}, "I64", "q", {"count": 1}),  # This difference is exact.
    ({"x": NONE}, {"x": 1.0}, "F32", "f", {"x": "one of the two tensors has a value that is not finite"}),
    ({"x": NONE}, {"x": NONE}, "F32", "f", {"x": 0}),
)


def flat(values):
    return [x for value in values for x in flat(value)] if isinstance(values, list) else [values]


def shape_of(values):
    return [len(values), *shape_of(values[0])] if isinstance(values, list) else []


def write_raw(path, header, data=b""):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_file(path, tensors, dtype="F32", code="f"):
    """Writes a safetensors file whose tensors have one dtype."""
    header, data = {}, b""
    for name, values in tensors.items():
        numbers, begin = flat(values), len(data)
        data += struct.pack(f"<{len(numbers)}{code}", *numbers)
        header[name] = {"dtype": dtype, "shape": shape_of(values), "data_offsets": [begin, len(data)]}
    write_raw(path, header, data)


def header_of(path):
    data = path.read_bytes()
    return json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])


class Ckpt(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.file, self.runs = self.root / "model.safetensors", self.root / "runs"
        write_file(self.file, TENSORS)

    def ckpt(self, *arguments, status=0):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def told(self, *arguments, status=0):
        return json.loads(self.ckpt(*arguments, "--json", status=status))

    def test_a_file_becomes_a_checkpoint_of_any_ranks_and_a_file_again(self):
        self.ckpt("import", self.file, self.runs, "--ranks", 3, "--step", 7)
        info = self.told("info", self.runs)
        self.assertEqual((info["step"], info["world_size"]), (7, 3))
        self.assertEqual(info["model"]["w"], {"dtype": "F32", "shape": [5, 2], "bytes": 40, "parts": 3})
        table = self.ckpt("info", self.runs)
        self.assertIn("step 7, saved by 3 ranks, fsdp ", table)
        self.assertIn("model: 3 tensors, 52 B\n  name  dtype  shape   size  files\n", table)
        self.assertIn("  w     F32    [5, 2]  40 B  3\n", table)
        two = self.root / "two"
        self.assertIn("two/step-000000000007: 3 tensors, ", self.ckpt("reshard", self.runs, two, "--ranks", 2))
        again = self.root / "again.safetensors"
        written = self.told("export", two, again)
        self.assertEqual(written, {"path": str(again), "tensors": 3, "bytes": again.stat().st_size})
        self.assertEqual(self.ckpt("diff", self.file, again), "3 of 3 tensors are equal\n")
        self.assertIn("w     F32    [5, 2]  40 B  1\n", self.ckpt("info", again))

    def train(self, *words):
        small = "--dim 16 --layers 1 --heads 2 --seq 16 --sample 0 --no-cuda".split()
        done = subprocess.run([GPT, *small, *map(str, words)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_training_goes_on_from_a_checkpoint_in_the_files_of_other_ranks(self):
        self.train("--steps", 2, "--save", self.runs)
        self.ckpt("reshard", self.runs, self.root / "three", "--ranks", 3)
        for name in ("runs", "three"):
            self.train("--steps", 3, "--resume", self.root / name, "--save", self.root / f"after {name}")
        after = [self.root / "after runs", self.root / "after three"]
        differences = self.told("diff", *after, "--training")
        self.assertIn("optim.state.head.weight.exp_avg", differences)
        self.ckpt("diff", self.runs, after[0], status=1)

    def test_an_older_step_does_not_become_a_runs_newest(self):
        self.ckpt("import", self.file, self.runs, "--step", 7)
        output = self.ckpt("import", self.file, self.runs, "--step", 6, status=1)
        says = "the newest checkpoint in this folder, which has step 7, and not from the new one, which has step "
        self.assertIn(f"{self.runs}: training would resume from {says}6", output)
        self.assertIn(says, self.ckpt("reshard", self.file, self.runs, status=1))
        self.assertEqual(self.told("info", self.runs)["step"], 7)
        self.assertEqual(sorted(path.name for path in self.runs.iterdir()), ["latest", "lock", "step-000000000007"])
        self.ckpt("reshard", self.runs, self.runs, "--ranks", 2)
        self.assertEqual(self.told("info", self.runs)["world_size"], 2)

    def test_rows_without_bytes_may_be_many(self):
        write_raw(self.file, {"x": {"dtype": "F32", "shape": [2**60, 0], "data_offsets": [0, 0]}})
        self.ckpt("import", self.file, self.runs, "--ranks", 99)
        self.assertEqual(self.told("info", self.runs)["model"]["x"]["parts"], 99)
        self.ckpt("verify", self.runs)
        self.ckpt("export", self.runs, self.root / "again")
        self.assertEqual(self.ckpt("diff", self.file, self.root / "again"), "1 of 1 tensors are equal\n")

    def test_info_shows_what_else_has_a_state(self):
        self.train("--steps", 1, "--fp16", "--save", self.runs)
        states = self.told("info", self.runs)["states"]
        self.assertEqual(states["scaler"]["_growth_tracker"], 1)
        self.assertIn(f"state of scaler: {json.dumps(states['scaler'], separators=(',', ':'))}\n",
                      self.ckpt("info", self.runs))

    def test_exports_at_once_to_one_name_leave_one_of_them_and_a_link_stays(self):
        other, target, link = (self.root / name for name in ("other.safetensors", "target", "link"))
        count = 1 << 19
        for path, value in (self.file, 1.0), (other, 2.0):
            write_file(path, {"w": [value] * count})
        link.symlink_to("target")
        exports = [subprocess.Popen([PROGRAM, "export", str(path), str(link)], stdout=subprocess.DEVNULL)
                   for path in (self.file, other) * 3]
        self.assertEqual([export.wait() for export in exports], [0] * len(exports))
        numbers = set(struct.unpack(f"<{count}f", target.read_bytes()[-4 * count:]))
        self.assertEqual(len(numbers), 1, numbers)
        self.assertTrue(link.is_symlink())
        self.assertEqual(sorted(path.name for path in self.root.iterdir()),
                         ["link", "model.safetensors", "other.safetensors", "target"])

    def test_export_converts(self):
        self.ckpt("export", self.file, self.root / "low.safetensors", "--dtype", "BF16")
        self.assertEqual(self.told("info", self.root / "low.safetensors")["model"]["w"]["dtype"], "BF16")
        differences = self.told("diff", self.file, self.root / "low.safetensors", status=1)
        self.assertEqual(differences["s"], 0)
        self.assertTrue(0 < differences["b"] < 0.2 * 2**-8, differences)

    def test_safetensors_opens_what_export_writes(self):
        imports = [PYTHON, "-c", "import safetensors, numpy"]
        if not shutil.which(PYTHON) or subprocess.run(imports, capture_output=True, check=False).returncode != 0:
            self.skipTest("no safetensors in the virtual environment (scripts/setup installs it)")
        self.ckpt("import", self.file, self.runs, "--ranks", 3)
        self.ckpt("export", self.runs, self.root / "half.safetensors", "--dtype", "F16")
        read = ("import json, sys; from safetensors.numpy import load_file; "
                "print(json.dumps({n: [str(t.dtype), t.tolist()] for n, t in load_file(sys.argv[1]).items()}))")
        done = subprocess.run([PYTHON, "-c", read, self.root / "half.safetensors"], capture_output=True, text=True,
                              check=True)
        for name, (dtype, values) in json.loads(done.stdout).items():
            self.assertEqual((dtype, shape_of(values)), ("float16", shape_of(TENSORS[name])))
            for found, expected in zip(flat([values]), flat([TENSORS[name]])):
                self.assertEqual(found, struct.unpack("<e", struct.pack("<e", expected))[0])

    def test_files_say_where_their_rows_lie_as_torch_distributed_checkpoint_does(self):
        self.ckpt("import", self.file, self.runs, "--ranks", 3)
        checkpoint = self.runs / "step-000000000000"
        found = {}
        for path in checkpoint.glob("model-*"):
            for name, place in json.loads(header_of(path)["__metadata__"]["DCP_SHARDING_INFO"]).items():
                found.setdefault(name, []).append(place["saved_offsets"])
        self.assertEqual({name: sorted(places) for name, places in found.items()},
                         {"w": [[0, 0], [1, 0], [3, 0]], "b": [[0, 0], [1, 0]], "s": [[]]})

    def test_diff_tells_the_largest_difference_and_what_is_missing(self):
        for one, other, dtype, code, expected in DIFFERENCES:
            write_file(self.root / "a", one, dtype, code)
            write_file(self.root / "b", other, dtype, code)
            same = expected == {"x": 0}
            self.assertEqual(self.told("diff", self.root / "a", self.root / "b", status=0 if same else 1), expected)
            equal = f"{int(same)} of {len(expected)} tensors are equal\n"
            self.assertIn(equal, self.ckpt("diff", self.root / "a", self.root / "b", status=0 if same else 1))

    def test_progress_is_told_of_large_files(self):
        large, end = self.root / "large", 33_000 * 8192
        write_raw(large, {"x": {"dtype": "F64", "shape": [33_000, 1024], "data_offsets": [0, end]}})
        os.truncate(large, large.stat().st_size + end)
        output = self.ckpt("diff", large, large)
        self.assertEqual(output.count(" % of 270 MB\n"), 10, output)
        self.assertIn("fsdp-ckpt: 100 % of 270 MB\n", output)

    def test_verify_names_what_is_damaged_or_incomplete(self):
        (self.runs / "partial-step-000000000009").mkdir(parents=True)
        self.assertIn("partial-step-000000000009: incomplete", self.ckpt("verify", self.runs, status=1))
        self.ckpt("import", self.file, self.runs, "--ranks", 2)
        (self.runs / "partial-step-000000000009").mkdir()
        output = self.ckpt("verify", self.runs)
        self.assertIn("complete, all bytes are as they were written", output)
        self.assertIn("partial-step-000000000009: incomplete", output)
        damaged = self.runs / "step-000000000000" / "model-00001-of-00002.safetensors"
        data = bytearray(damaged.read_bytes())
        data[-1] ^= 1
        damaged.write_bytes(data)
        self.assertRegex(self.ckpt("verify", self.runs, status=1), r"model-00001-of-00002.*expected the checksum")
        problems = self.told("verify", self.runs, status=1)
        self.assertEqual([len(lines) for lines in problems["checkpoints"].values()], [1])
        self.assertEqual(problems["incomplete"], ["partial-step-000000000009"])

    def test_mistakes_are_one_sentence(self):
        (self.root / "text").write_text("this is no safetensors file")
        for words, status, why in ((["info", self.root / "none"], 1, "expected a checkpoint"),
                                   (["export", self.file, self.root / "no/where"], 1, "cannot create the file"),
                                   (["info", self.root / "text"], 1, "expected a header of at most"),
                                   (["verify", self.file], 1, "found a file, which has no checksums"),
                                   (["verify", self.root / "none"], 1, "no such folder"),
                                   (["reshard", self.file, self.runs, "--ranks", 0], 2, "--ranks"),
                                   ([], 2, "subcommand")):
            self.assertRegex(self.ckpt(*words, status=status), rf"\Afsdp-ckpt: .*{why}.*\n\Z")


if __name__ == "__main__":
    PROGRAM, GPT, PYTHON = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
