"""Runs compare with programs that print known figures.

    python3 compare_test.py
"""

import unittest

from compare_case import CompareCase

# Each writes its arguments to a log and prints the figures that its n-th run is given.
BENCH = """
    #!/usr/bin/env python3
    import json, pathlib, sys
    log = pathlib.Path(__file__).with_name("log")
    runs = log.read_text().splitlines() if log.exists() else []
    log.write_text("\\n".join([*runs, "ours " + " ".join(sys.argv[1:])]) + "\\n")
    if "--versus" in sys.argv:
        print(json.dumps(dict(ratio=1.05, ratio_95=[1.04, 1.0625], ms_per_step=[105.0, 100.0], pairs=60)))
    else:
        number = sum(run.startswith("ours") for run in runs)
        tokens_per_s = [300, 100, 200][number % 3]
        print(json.dumps(dict(engine="fsdp", world=2, tokens_per_s=tokens_per_s, pss_mb=50, losses=LOSSES)))
"""
TORCHRUN = """
    #!/usr/bin/env python3
    import json, pathlib, sys
    engine = sys.argv[sys.argv.index("--engine") + 1]
    log = pathlib.Path(__file__).with_name("log")
    runs = log.read_text().splitlines() if log.exists() else []
    log.write_text("\\n".join([*runs, engine + " " + " ".join(sys.argv[1:])]) + "\\n")
    print("a line of another kind")
    PRINT(json.dumps(dict(engine="torch-" + engine, world=2, tokens_per_s=100 if engine == "fsdp2" else 400,
                          pss_mb=100, losses=[2.0, 4.0])))
    sys.exit(STATUS)
"""


class Compare(CompareCase):
    def compare(self, *words, losses="[2.0, 4.0]", peer_prints="print", peer_status=0):
        self.write("bench", BENCH.replace("LOSSES", losses))
        self.write("torchrun", TORCHRUN.replace("PRINT", peer_prints).replace("STATUS", str(peer_status)))
        self.write("peer", "")
        return self.run_compare(("bench", "torchrun", "peer"), words)

    def test_starts_ours_by_the_launcher_too(self):
        self.write("fsdprun", """
            #!/usr/bin/env bash
            [[ "$1 $2 $3" == "--no-prefix --nproc_per_node 2" ]] && exec "${@:4}"
        """)
        self.lines("--rounds", 1, "--launch", "fsdprun", "--fsdprun", self.folder / "fsdprun")
        self.assertEqual(sum(run.startswith("ours step") for run in self.runs()), 2)

    def test_prints_medians_and_ranges_as_markdown(self):
        lines = self.lines("--rounds", 3)
        for row in ("| figure | 9M |",
                    "| tokens/s, ours : torch-fsdp2 | 2.000 (1.000 to 3.000) |",
                    "| tokens/s, ours : torch-ddp | 0.500 (0.250 to 0.750) |",
                    "| tokens/s, at the bound : torch-fsdp2 | 2.100 |",
                    "| PSS of rank 0, ours : torch-fsdp2 | 0.500 (0.500 to 0.500) |",
                    "| our step : bound | 1.050 (1.040 to 1.062) |",
                    "| losses, largest relative difference | 0.0e+00 |",
                    "| our losses the same bits in every round | yes |"):
            self.assertIn(row, lines)

    def test_saving_is_compared_with_plain_files_and_with_the_peer(self):
        lines = self.checkpoints("--rounds", 3, "--folder", self.folder)
        for row in ("| speed, save, ours : torch-dcp | 2.000 (2.000 to 2.000) |",
                    "| speed, load, ours : torch-dcp | 0.500 (0.500 to 0.500) |",
                    "| speed, save, ours : a plain write of the same bytes | 0.900 (0.900 to 0.900) |",
                    "| speed, load, ours : a plain read of the same bytes | 0.800 (0.800 to 0.800) |",
                    "| MB on the disk, torch-dcp | 110.0 |"):
            self.assertIn(row, lines)
        self.assertEqual([run.split()[0] for run in self.runs()], ["ours", "fsdp2", "fsdp2", "ours", "ours", "fsdp2"])
        self.assertTrue(all(f"--folder {self.folder}" in run for run in self.runs()))

    def checkpoints(self, *words):
        figures = "dict(seconds={}, mb_per_s=100, of_plain={})"
        result = "json.dumps(dict(megabytes={}, save=" + figures + ", load=" + figures + "))"
        log = """
            #!/usr/bin/env python3
            import json, pathlib, sys
            with pathlib.Path(__file__).with_name("log").open("a") as log:
                log.write("NAME " + " ".join(sys.argv[1:]) + "\\n")
            print(RESULT)
        """
        ours, peer = result.format(100, 1, 0.9, 4, 0.8), result.format(110, 2, 0, 2, 0)
        self.write("bench", log.replace("NAME", "ours").replace("RESULT", ours))
        self.write("torchrun", log.replace("NAME", "fsdp2").replace("RESULT", peer))
        self.write("peer", "")
        done = self.run_compare(("bench", "torchrun", "peer"), ["--program", "checkpoint", *words])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def test_prints_the_same_as_text(self):
        row = next(line for line in self.lines("--rounds", 3) if line.startswith("tokens/s, ours : torch-fsdp2"))
        self.assertEqual(row.split("  ")[-1].strip(), "2.000 (1.000 to 3.000)")

    def test_each_size_has_a_column_and_its_own_flags(self):
        self.assertIn("| figure | 9M | 69M |", self.lines("--sizes", "9M,69M", "--rounds", 1))
        sizes = {"--dim 256 --layers 6 --batch 4 --seq 128": 4, "--dim 768 --layers 8 --batch 1 --seq 128": 4}
        for words, count in sizes.items():
            self.assertEqual(sum(words in run for run in self.runs()), count, self.runs())

    def test_takes_turns_at_going_first_and_the_bound_comes_last(self):
        self.lines("--rounds", 3)
        names = [run.split()[0] for run in self.runs()]
        self.assertEqual(names, ["ours", "fsdp2", "ddp", "fsdp2", "ddp", "ours", "ddp", "ours", "fsdp2", "ours"])
        self.assertIn("--versus none --pairs 60", self.runs()[-1])

    def test_passes_the_backend_to_ours_only(self):
        self.lines("--rounds", 1, "--backend", "shm")
        self.assertEqual([("--backend shm" in run) for run in self.runs()], [True, False, False, True])

    def test_passes_the_strategy_and_the_mesh_to_ours_only(self):
        self.lines("--rounds", 1, "--strategy", "replicate", "--mesh", "1x2")
        self.assertEqual([("--strategy replicate --mesh 1x2" in run) for run in self.runs()],
                         [True, False, False, True])

    def test_tells_how_far_losses_differ(self):
        self.assertIn("| losses, largest relative difference | 2.5e-01 |",
                      self.lines("--rounds", 1, losses="[2.0, 5.0]"))

    def test_a_policy_of_low_precision_is_compared_with_the_same_and_with_fp32(self):
        lines = self.lines("--rounds", 3, "--precision", "bf16", losses="[2.0, 4.0 if '--precision' in sys.argv else 5.0]")
        for row in ("| tokens/s, ours : torch-fsdp2 | 3.000 (2.000 to 3.000) |",
                    "| tokens/s, ours, bf16 : fp32 | 2.000 (1.500 to 3.000) |",
                    "| tokens/s, torch-fsdp2, bf16 : fp32 | 1.000 (1.000 to 1.000) |",
                    "| losses, largest relative difference, ours and torch-fsdp2's | 0.0e+00 |",
                    "| losses, largest relative difference, torch-fsdp2's and its fp32 | 0.0e+00 |",
                    "| our losses the same bits in every round | yes |"):
            self.assertIn(row, lines)
        self.assertTrue(any(line.startswith("2 ranks, bf16, ") for line in lines))
        self.assertEqual([run.split()[0] for run in self.runs()][:4], ["ours", "fsdp2", "ours", "fsdp2"])
        self.assertEqual([("--precision bf16" in run) for run in self.runs()][:4], [True, True, False, False])
        self.assertFalse(any("--versus" in run for run in self.runs()))
        done = self.compare("--precision", "bf16", "--peers", "ddp")
        self.assertIn("--precision bf16 is for --peers fsdp2", done.stderr)

    def test_tells_that_our_losses_do_not_repeat(self):
        self.assertIn("| our losses the same bits in every round | NO |",
                      self.lines("--rounds", 2, losses="[2.0, 4.0 + number]"))

    def test_names_command_and_date(self):
        text = "\n".join(self.lines("--rounds", 1))
        self.assertRegex(text, r"\n2 ranks, fp32, \d+ processors .*, \d{4}-\d\d-\d\d, commit .*:\n"
                               r"\n    \S*compare .*--rounds 1\n")

    def test_a_peer_that_aborts_after_its_result_is_told_and_does_not_count(self):
        lines = self.lines("--rounds", 1, peer_status=134)
        self.assertIn("(torch's processes ended with status 134 after they had printed the result)", lines)

    def test_a_peer_without_a_result_is_an_error(self):
        for status in (0, 1):
            done = self.compare("--rounds", 1, peer_prints="str", peer_status=status)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"failed with status {status}", done.stderr)

    def test_wrong_arguments_are_named(self):
        for words, expected in ((("--sizes", "9M,8M"), "--sizes names '8M'"), (("--rounds", 0), "--rounds is 0"),
                                (("--peer", "/nowhere"), "there is no script /nowhere"),
                                (("--backend", "pigeon"), "--backend")):
            done = self.compare(*words)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
