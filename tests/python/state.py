"""Opens files that ranks wrote with Python's own readers: state.py checkpoint|archive PATH EXPECTED.

EXPECTED is a JSON file with the sizes and all values of each parameter. A test of state_test.cpp runs this script.
"""

import json
import pathlib
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open


def parts_by_name(checkpoint):
    """Returns the parts of each parameter in the order of its elements, as safetensors reads them."""
    found = {}
    for path in sorted(checkpoint.glob("model-*.safetensors"), key=lambda path: path.stem):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                found.setdefault(name, []).append(file.get_tensor(name))
    return found


def compare_checkpoint(checkpoint, expected):
    parts = parts_by_name(checkpoint)
    state = {name: torch.zeros_like(values) for name, values in expected.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(checkpoint)), no_dist=True)
    for name, values in expected.items():
        assert torch.equal(torch.cat([part.flatten() for part in parts[name]]), values.flatten()), f"{name}: safetensors"
        assert torch.equal(state[name], values), f"{name}: torch.distributed.checkpoint"
    assert set(parts) == set(expected), set(parts) ^ set(expected)


def compare_archive(path, expected):
    """Compares a file of torch::save, which Python opens as a TorchScript module."""
    state = torch.load(path, weights_only=False).state_dict()
    assert set(state) == set(expected), set(state) ^ set(expected)
    for name, values in expected.items():
        assert torch.equal(state[name], values), name


def main():
    what, path = sys.argv[1], pathlib.Path(sys.argv[2])
    expected = {name: torch.tensor(values, dtype=torch.float64).reshape(sizes)
                for name, (sizes, values) in json.loads(pathlib.Path(sys.argv[3]).read_text(encoding="utf-8")).items()}
    {"checkpoint": compare_checkpoint, "archive": compare_archive}[what](path, expected)
    print(f"{len(expected)} tensors are equal")


if __name__ == "__main__":
    main()
