"""Runs a bundle of scripts/gpu_check on this machine, which must have the release of torch that the bundle is for.

    python3 BUNDLE/tools/gpu_check/main.py [--out FOLDER] [--seconds 460]

Runs the parts in parts.py. A part that takes too long is killed, and parts that do not fit into --seconds are left out.
Prints a line for each part and a table at the end; FOLDER/gpu_check.json has the figures and the end of
each part's output.

Status 0: all passed; 77: the programs start, but there is no GPU; 1: something failed, hung or was left out.
"""

import argparse
import json
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]  # root of the bundle
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True

import limited  # pylint: disable=wrong-import-position
import machine
import parts
import report

SECONDS = 460  # seconds; a command that hangs at the end takes a little longer to kill
LEAST_SECONDS = 5  # seconds that must be left to begin a part


def run_parts(all_parts, deadline, environment, has_device, tell):
    """Runs the parts and returns their results, one for each. After each part, calls `tell` with all results so far."""
    results = []
    for part in all_parts:
        results.append(run_part(part, deadline - time.monotonic(), environment, has_device))
        tell(results)
    return results


def run_part(part, seconds_left, environment, has_device):
    if not part.command:
        return parts.Result(part.name, parts.NOT_THERE, f"{machine.SANITIZER} is not installed")
    if seconds_left < LEAST_SECONDS:
        return parts.Result(part.name, parts.LEFT_OUT, "no time was left")
    ended = limited.run([*map(str, part.command)], min(part.limit, seconds_left), environment | part.environment)
    return parts.judge(part, ended, has_device)


def check(bundle, out, seconds):
    """Returns the exit status."""
    begun = time.monotonic()
    found = machine.probe()
    unfit = machine.why_unfit(found, bundle)
    if unfit:
        sys.exit(f"gpu_check: {unfit}")
    print(f"gpu_check: torch {found['torch']}, NCCL {found['nccl']}, GPUs: {', '.join(found['devices']) or 'none'}",
          flush=True)

    def write(results):
        out.mkdir(parents=True, exist_ok=True)
        text = report.as_json(bundle, found, results, time.monotonic() - begun)
        (out / "gpu_check.json").write_text(text + "\n", encoding="utf-8")

    def tell(results):
        write(results)  # The file is written after each part, because the machine could fail before the last one.
        print(report.as_line(results[-1]), flush=True)

    environment = os.environ | {"LD_LIBRARY_PATH": machine.library_path(ROOT, found), "OMP_NUM_THREADS": "1",
                                "PYTHONDONTWRITEBYTECODE": "1"}
    results = run_parts(parts.all_parts(ROOT, machine.find_sanitizer()), begun + seconds, environment,
                        bool(found["devices"]), tell)
    parts.add_utilisation(results, found["devices"])
    results += list(parts.compare_steps(results))
    write(results)
    print(f"\n{report.as_table(results)}\n\ngpu_check: {time.monotonic() - begun:.0f} s; {out / 'gpu_check.json'}")
    return report.status(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder of the results (.)")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"seconds for all parts together ({SECONDS})")
    arguments = parser.parse_args()
    bundle = json.loads((ROOT / "bundle.json").read_text(encoding="utf-8"))
    sys.exit(check(bundle, arguments.out, arguments.seconds))


if __name__ == "__main__":
    main()
