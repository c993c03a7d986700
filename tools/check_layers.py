"""Fails if a layer includes a higher layer or a sibling, if files include each other in a circle, if a public header
names something that is not public, or if text depends on the program's locale. docs/architecture.md explains the
layers.

    python3 tools/check_layers.py
"""

import graphlib
import pathlib
import re
import sys
import tempfile

# The layers from the lowest to the highest. Those in one line are siblings, which may not include each other. Each
# layer is a folder of src; the layer comm has subfolders with an order of their own.
LAYERS = [
    ["layout"],
    ["comm/core", "comm/posix"],
    ["comm/failure"],
    ["comm/c10d", "comm/rendezvous", "comm/shm"],
    ["comm/group"],
    ["launch", "memory"],
    ["runtime"],
    ["api"],
    ["optim", "amp", "modules", "parallel"],
    ["activation"],
    ["report", "state"],
    ["pipeline"],
    ["train"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FOLDERS = {name.split("/")[0] for name in LEVEL}

# A public header include/fsdp/<name>.h belongs to the layer that has <name>.cpp or <name>.h. The headers here have
# other names.
PUBLIC_HEADERS = {
    "layout": "version",
    "comm/core": "backend error communicator traffic",
    "comm/group": "process_group",
    "launch": "spawn",
    "runtime": "tensor_cut",
    "api": "collectives scaled_step options group sharded fully_shard initialize scopes join wrap_policy parameters",
    "activation": "tiled",
    "pipeline": "pipeline_schedule",
    "state": "checkpoint",
    "optim": "clip_grad optim",
    "train": "batches metrics samplers trainer_options",
}
LAYER_OF_PUBLIC = {name: layer for layer, names in PUBLIC_HEADERS.items() for name in names.split()}
UMBRELLA = "fsdp/fsdp.h"  # for programs, never for a layer

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
PRIVATE_NAMESPACE = re.compile(r"\b(?:layout|memory|runtime)::|\bnamespace (?:fsdp::)?(?:layout|memory|runtime)\b")
TENSOR_LIBRARY = re.compile(r"(ATen|torch|c10|caffe2)/")
# See Note [Numbers in text] in that file.
TEXT = "comm/core/text"
LOCALE_DEPENDENT = re.compile(r"\bc10::(?:str|Join)\(|\bstd::[oi]?stringstream\b|\b(?:strtod|sto[df]|std::format)\(")


def layer_of(path):
    """Returns the layer of a file, given as its path from src. The file need not exist."""
    room = "/".join(path.parts[:2])
    return room if room in LEVEL else path.parts[0] if len(path.parts) > 1 else "src"


def layer_of_public(root, name):
    owners = {layer_of(path.relative_to(root / "src")) for path in (root / "src").glob(f"**/{name}.*")}
    return LAYER_OF_PUBLIC.get(name) or (owners.pop() if len(owners) == 1 else None)


def layer_of_include(root, name):
    """Returns the layer of an included file, or None if the file does not belong to the library."""
    path = pathlib.PurePosixPath(name)
    if path.parts[0] == "fsdp" and len(path.parts) == 2:
        return layer_of_public(root, path.stem)
    return layer_of(path) if path.parts[0] in FOLDERS and len(path.parts) > 1 else None


def problem_of_include(root, layer, is_public, name):
    """Returns what is wrong with an include in a file of `layer`, or None."""
    included = layer_of_include(root, name)
    if ".." in name.split("/"):
        return "write the path from src/"
    if name == UMBRELLA:
        return "that header is for programs"
    if layer == "layout" and TENSOR_LIBRARY.match(name):
        return "layout knows integers only"
    if included is not None and is_public and not name.startswith("fsdp/"):
        return "a public header includes only public headers, because src/ is not installed"
    if included in LEVEL and included != layer and LEVEL[included] >= LEVEL[layer]:
        return f"{included} is {'higher' if LEVEL[included] > LEVEL[layer] else 'a sibling'}"
    return None


def problems_of(root):
    """Returns the problems of a source tree, as lines to print."""
    graph = {}  # A header and its .cpp are one node.
    for path in sorted([*root.glob("src/**/*"), *root.glob("include/fsdp/*"), *root.glob("examples/**/*")]):
        place = path.relative_to(root)
        if path.suffix not in (".h", ".cpp") or place.as_posix() == f"include/{UMBRELLA}":
            continue
        text = path.read_text(encoding="utf-8")
        includes = INCLUDE.findall(text)
        if place.parts[0] == "examples":
            yield from (f"{place} includes {name}: an example uses public headers only" for name in includes
                        if name.split("/")[0] in FOLDERS)
            continue
        is_public = place.parts[0] == "include"
        layer = layer_of_public(root, path.stem) if is_public else layer_of(path.relative_to(root / "src"))
        if layer not in LEVEL:
            yield f"{place}: of which layer? See LAYERS and PUBLIC_HEADERS in tools/check_layers.py"
            continue
        if is_public and (named := PRIVATE_NAMESPACE.search(text)):
            yield f"{place}: names {named[0]}, which is not public"
        if place.with_suffix("").as_posix() != f"src/{TEXT}" and (found := LOCALE_DEPENDENT.search(text)):
            yield f"{place}: {found[0]} follows the program's locale: use {TEXT}.h"
        for name in includes:
            if problem := problem_of_include(root, layer, is_public, name):
                yield f"{place}: {layer} includes {name}: {problem}"
        if not is_public:
            stem = path.relative_to(root / "src").with_suffix("").as_posix()
            graph.setdefault(stem, set()).update({name.rsplit(".", 1)[0] for name in includes} - {stem})
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"a circle of includes: {' <- '.join(error.args[1])}"


def check_itself():
    """Checks that each of these trees of two files has the problem in the third column."""
    for name, text, problem in (
        ("src/layout/rows.h", '#include "comm/core/gather.h"\n', "comm/core is higher"),
        ("src/comm/core/ring.h", "#include <fsdp/process_group.h>\n", "comm/group is higher"),
        ("src/comm/posix/ring.h", '#include "comm/core/gather.h"\n', "comm/core is a sibling"),
        ("src/comm/core/ring.cpp", '#include "comm/core/gather.h"\n', "a circle of includes: "),
        ("src/common/ring.h", "", "of which layer?"),
        ("include/fsdp/error.h", "class Ring : public runtime::Unit {};\n", "names runtime::, which is not public"),
        ("src/comm/core/ring.cpp", "std::ostringstream text;\n", "std::ostringstream follows the program's locale"),
        ("src/comm/core/ring.h", "#include <vector>\n", None),
    ):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, content in ((name, text), ("src/comm/core/gather.h", '#include "comm/core/ring.h"\n')):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(content, encoding="utf-8")
            found = list(problems_of(root))
            if (problem is None) != (not found) or problem and problem not in found[0]:
                yield f"check_layers.py itself: {name} has to give {problem!r}, but gives {found}"


if __name__ == "__main__":
    PROBLEMS = [*check_itself(), *problems_of(pathlib.Path(__file__).resolve().parent.parent)]
    print("\n".join(PROBLEMS) or "layers: every include points downwards, none in a circle; no text follows a locale")
    sys.exit(bool(PROBLEMS))
