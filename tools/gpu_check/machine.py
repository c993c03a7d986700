"""Describes the machine on which a bundle runs: Python's torch, the GPUs, and where programs find their libraries."""

import json
import os
import pathlib
import shutil
import sys

import limited

PROBE = """
import json, torch
count = torch.cuda.device_count()
print(json.dumps(dict(
    torch=torch.__version__, folder=torch.__path__[0], cuda=torch.version.cuda,
    nccl=".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None,
    devices=[torch.cuda.get_device_name(i) for i in range(count)])))
"""
LIMIT = 90  # seconds; the first import of torch reads gigabytes
SANITIZER = "compute-sanitizer"
SANITIZER_FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")


def probe():
    """Returns {"torch", "folder", "cuda", "nccl", "devices"} of this Python's torch, or {"error"} if something is
    wrong."""
    ended = limited.run([sys.executable, "-c", PROBE], LIMIT, os.environ)
    if ended.status != 0:
        lines = ended.output.strip().splitlines() or [f"no answer in {LIMIT} s"]
        return {"error": f"{sys.executable} cannot import torch: {lines[-1]}"}
    return json.loads(ended.output.strip().splitlines()[-1])


def release(version):
    """Returns the part of torch's version that must be equal where programs are built and where they run, e.g. 2.11.0
    of 2.11.0+cu130."""
    return version.split("+")[0]


def why_unfit(machine, bundle):
    """Returns why a bundle cannot run here, or an empty string if it can."""
    if "error" in machine:
        return machine["error"]
    if release(machine["torch"]) != release(bundle["torch"]) or machine["cuda"] != bundle["cuda"]:
        return (f"the bundle is for torch {release(bundle['torch'])} with CUDA {bundle['cuda']}, this machine has torch "
                f"{release(machine['torch'])} with {'CUDA ' + machine['cuda'] if machine['cuda'] else 'no CUDA'}")
    return ""


def library_path(bundle_folder, machine):
    """Returns LD_LIBRARY_PATH for the bundle's programs: its own libraries, torch's and those of the packages beside
    it."""
    torch = pathlib.Path(machine["folder"])
    folders = [bundle_folder / "lib", torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
    return ":".join([*map(str, folders), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def find_sanitizer():
    """Returns the path of compute-sanitizer, or None."""
    return shutil.which(SANITIZER, path=":".join([os.environ.get("PATH", ""), *SANITIZER_FOLDERS]))
