"""Fails when a layer includes a higher one or a sibling.

    python3 tools/check_layers.py [ROOT]

Files under src/<layer> belong to that layer. A public header include/fsdp/<name>.h belongs to the layer that holds
<name>.cpp or <name>.h, unless PUBLIC_HEADERS names another. docs/architecture.md explains the layers.
"""

import pathlib
import re
import sys

# Lowest first; the layers of one line are siblings, which do not know each other.
LAYERS = [
    ["layout"],
    ["comm"],
    ["memory"],
    ["runtime"],
    ["api"],
    ["optim", "state", "init", "activation", "amp"],
    ["train"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Public headers whose layer does not follow from the name of a file in src.
PUBLIC_HEADERS = {
    "error": "comm",
    "communicator": "comm",
    "collectives": "comm",
    "process_group": "comm",
    "spawn": "comm",
    "options": "api",
    "group": "api",
    "sharded": "api",
    "fully_shard": "api",
    "scopes": "api",
    "wrap_policy": "api",
    "parameters": "api",
    "clip_grad": "optim",
    "optim": "optim",
    "images": "train",
    "metrics": "train",
    "samplers": "train",
}
# Includes every public header; for programs, never for a layer.
UMBRELLA = "fsdp"

INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
SOURCES = {".h", ".hpp", ".cpp", ".cc", ".inc"}
TENSOR_LIBRARY = re.compile(r"(ATen|torch|c10|caffe2)/")


def layer_of_public(root, stem):
    """The layer of include/fsdp/<stem>.h, or None."""
    if stem in PUBLIC_HEADERS:
        return PUBLIC_HEADERS[stem]
    owners = {
        path.relative_to(root / "src").parts[0]
        for suffix in SOURCES
        for path in (root / "src").glob(f"*/{stem}{suffix}")
    }
    return owners.pop() if len(owners) == 1 else None


def layer_of_include(root, quoted, angled):
    """The layer of an included file, None for files that are not the library's."""
    name = quoted or angled
    parts = pathlib.PurePosixPath(name).parts
    if parts[0] == "fsdp" and len(parts) == 2:
        return layer_of_public(root, pathlib.PurePosixPath(name).stem)
    if parts[0] in LEVEL and len(parts) > 1:
        return parts[0]
    return None


def check_file(root, path, layer):
    """Problems of one file that belongs to `layer`."""
    public = path.is_relative_to(root / "include")
    for match in INCLUDE.finditer(path.read_text(encoding="utf-8")):
        quoted, angled = match.groups()
        name = quoted or angled
        line = f"{path.relative_to(root)}: {layer} includes {name}"
        if ".." in pathlib.PurePosixPath(name).parts:
            yield f"{line}: write the path from src/"
        if name == f"fsdp/{UMBRELLA}.h":
            yield f"{line}: that header is for programs"
            continue
        if layer == "layout" and TENSOR_LIBRARY.match(name):
            yield f"{line}: layout knows integers only"
        included = layer_of_include(root, quoted, angled)
        if included is None:
            continue
        if public and not name.startswith("fsdp/"):
            yield f"{line}: a public header includes only public headers, because src/ is not installed"
        if LEVEL[included] > LEVEL[layer]:
            yield f"{line}: {included} is a higher layer"
        elif LEVEL[included] == LEVEL[layer] and included != layer:
            yield f"{line}: {included} is a sibling"


def sources_under(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in SOURCES)


def check(root):
    """Problems of a source tree, as lines to print."""
    root = pathlib.Path(root).resolve()
    problems = []
    for path in sources_under(root / "src"):
        layer = path.relative_to(root / "src").parts[0]
        if layer not in LEVEL:
            problems.append(f"{path.relative_to(root)}: src/{layer} is no layer; LAYERS in tools/check_layers.py lists them")
            continue
        problems += check_file(root, path, layer)
    for path in sources_under(root / "include"):
        if path.stem == UMBRELLA:
            continue
        layer = layer_of_public(root, path.stem)
        if layer is None:
            problems.append(
                f"{path.relative_to(root)}: of which layer? No layer, or more than one, has {path.stem}.cpp;"
                " name it in PUBLIC_HEADERS of tools/check_layers.py"
            )
            continue
        problems += check_file(root, path, layer)
    for path in sources_under(root / "examples"):
        for quoted, angled in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if pathlib.PurePosixPath(quoted or angled).parts[0] in LEVEL:
                problems.append(f"{path.relative_to(root)}: includes {quoted or angled}: an example uses public headers only")
    return problems


def main():
    problems = check(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    print("\n".join(problems) or "layers: every include points downwards")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
