"""Fails when a layer, or a room of one, includes a higher one or a sibling, when files include each other in a circle, or
when a public header names what is not public.

    python3 tools/check_layers.py [ROOT]

Files under src/<layer> belong to that layer, those under src/<layer>/<room> to that room where ROOMS lists the layer's.
A public header include/fsdp/<name>.h belongs where <name>.cpp or <name>.h lies, unless PUBLIC_HEADERS names another
place. A header and its .cpp are one thing: circles are looked for among the files of each layer. docs/architecture.md
explains the layers.
"""

import pathlib
import re
import sys

# Lowest first; the layers of one line are siblings, which do not know each other.
LAYERS = [
    ["layout"],
    ["comm"],
    ["launch", "memory"],
    ["runtime"],
    ["api"],
    ["optim", "init", "activation", "amp", "modules"],
    ["report", "state"],
    ["train"],
]
# The same inside a layer.
ROOMS = {
    "comm": [
        ["core", "posix"],
        ["failure"],
        ["c10d", "rendezvous", "shm"],
        ["group"],
    ],
}


def levels(rows):
    return {name: level for level, names in enumerate(rows) for name in names}


LEVEL = levels(LAYERS)
ROOM_LEVEL = {layer: levels(rows) for layer, rows in ROOMS.items()}

# Public headers whose place does not follow from the name of a file in src.
PUBLIC_HEADERS = {
    "backend": "comm/core",
    "error": "comm/core",
    "communicator": "comm/core",
    "collectives": "comm/group",
    "process_group": "comm/group",
    "spawn": "launch",
    "advice": "api",
    "scaled_step": "api",
    "options": "api",
    "group": "api",
    "sharded": "api",
    "fully_shard": "api",
    "scopes": "api",
    "join": "api",
    "wrap_policy": "api",
    "parameters": "api",
    "scaled_step": "api",
    "checkpoint": "state",
    "clip_grad": "optim",
    "optim": "optim",
    "batches": "train",
    "images": "train",
    "metrics": "train",
    "samplers": "train",
    "trainer_options": "train",
}
# Includes every public header; for programs, never for a layer.
UMBRELLA = "fsdp"

INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
SOURCES = {".h", ".hpp", ".cpp", ".cc", ".inc"}
# Namespaces of layers that have no public headers, and so no public types.
PRIVATE_NAMESPACE = re.compile(r"\b(?:layout|memory|runtime)::|\bnamespace (?:fsdp::)?(?:layout|memory|runtime)\b")
TENSOR_LIBRARY = re.compile(r"(ATen|torch|c10|caffe2)/")


class Place:
    """Where a file belongs: a layer, and a room if the layer has rooms."""

    def __init__(self, folders):
        self.layer = folders[0] if folders else ""
        self.room = folders[1] if len(folders) > 1 and folders[0] in ROOMS else None
        self.name = f"{self.layer}/{self.room}" if self.room else self.layer

    def problem(self):
        """What is wrong with the place itself."""
        if self.layer not in LEVEL:
            return f"src/{self.layer} is no layer; LAYERS in tools/check_layers.py lists them"
        if self.layer in ROOMS and self.room not in ROOM_LEVEL[self.layer]:
            return f"{self.name} is no room of {self.layer}; ROOMS in tools/check_layers.py lists them"
        return None

    def may_not_include(self, other):
        """What `other` is that a file here must not include it, or None."""
        if self.layer != other.layer:
            mine, theirs, kind = LEVEL[self.layer], LEVEL[other.layer], "layer"
        elif self.room != other.room:
            mine, theirs, kind = *(ROOM_LEVEL[self.layer].get(room, -1) for room in (self.room, other.room)), "room"
        else:
            return None
        if theirs > mine:
            return f"{other.name} is a higher {kind}"
        return f"{other.name} is a sibling" if theirs == mine else None


def place_of_public(root, stem):
    """Where include/fsdp/<stem>.h belongs, or None."""
    if stem in PUBLIC_HEADERS:
        return Place(PUBLIC_HEADERS[stem].split("/"))
    owners = {
        path.parent.relative_to(root / "src").parts
        for suffix in SOURCES
        for path in (root / "src").glob(f"**/{stem}{suffix}")
    }
    return Place(owners.pop()) if len(owners) == 1 else None


def place_of_include(root, quoted, angled):
    """Where an included file belongs, None for files that are not the library's."""
    path = pathlib.PurePosixPath(quoted or angled)
    if path.parts[0] == "fsdp" and len(path.parts) == 2:
        return place_of_public(root, path.stem)
    if path.parts[0] in LEVEL and len(path.parts) > 1:
        return Place(path.parent.parts)
    return None


def check_file(root, path, place):
    """Problems of one file that belongs to `place`."""
    public = path.is_relative_to(root / "include")
    text = path.read_text(encoding="utf-8")
    if public and (named := PRIVATE_NAMESPACE.search(text)):
        yield f"{path.relative_to(root)}: names {named[0]}, which is not public"
    for match in INCLUDE.finditer(text):
        quoted, angled = match.groups()
        name = quoted or angled
        line = f"{path.relative_to(root)}: {place.name} includes {name}"
        if ".." in pathlib.PurePosixPath(name).parts:
            yield f"{line}: write the path from src/"
        if name == f"fsdp/{UMBRELLA}.h":
            yield f"{line}: that header is for programs"
            continue
        if place.layer == "layout" and TENSOR_LIBRARY.match(name):
            yield f"{line}: layout knows integers only"
        included = place_of_include(root, quoted, angled)
        if included is None:
            continue
        if public and not name.startswith("fsdp/"):
            yield f"{line}: a public header includes only public headers, because src/ is not installed"
        if reason := place.may_not_include(included):
            yield f"{line}: {reason}"


def include_graph(root, layer):
    """Which stems of a layer include which others of it."""
    graph = {}
    for path in sources_under(root / "src" / layer):
        stem = path.relative_to(root / "src").with_suffix("")
        quoted = (name for name, _ in INCLUDE.findall(path.read_text(encoding="utf-8")) if name)
        names = {str(pathlib.PurePosixPath(name).with_suffix("")) for name in quoted if name.startswith(f"{layer}/")}
        graph.setdefault(stem.as_posix(), set()).update(names - {stem.as_posix()})
    return graph


def reachable(graph, start):
    """What `start` leads to, each with the file before it on a shortest way."""
    before, queue = {}, [start]
    for node in queue:
        for following in sorted(graph.get(node, ())):
            if following not in before:
                before[following] = node
                queue.append(following)
    return before


def circle_lines(root, layer):
    """For each set of files that lead to each other: the set, and a shortest circle through its first file."""
    graph = include_graph(root, layer)
    leads_to = {node: reachable(graph, node) for node in graph}
    seen = set()
    for start in sorted(graph):
        members = {node for node in leads_to[start] if start in leads_to.get(node, ())}
        if not members or start in seen:
            continue
        seen |= members
        circle = [start, leads_to[start][start]]
        while circle[-1] != start:
            circle.append(leads_to[start][circle[-1]])
        yield f"{' -> '.join(reversed(circle))}: a circle of includes among {len(members)} files: {', '.join(sorted(members))}"


def sources_under(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in SOURCES)


def check(root):
    """Problems of a source tree, as lines to print."""
    root = pathlib.Path(root).resolve()
    problems = []
    for path in sources_under(root / "src"):
        place = Place(path.parent.relative_to(root / "src").parts)
        if problem := place.problem():
            problems.append(f"{path.relative_to(root)}: {problem}")
            continue
        problems += check_file(root, path, place)
    for path in sources_under(root / "include"):
        if path.stem == UMBRELLA:
            continue
        place = place_of_public(root, path.stem)
        if place is None:
            problems.append(
                f"{path.relative_to(root)}: of which layer? No layer, or more than one, has {path.stem}.cpp;"
                " name it in PUBLIC_HEADERS of tools/check_layers.py"
            )
            continue
        problems += check_file(root, path, place)
    for layer in LEVEL:
        problems += circle_lines(root, layer)
    for path in sources_under(root / "examples"):
        for quoted, angled in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if pathlib.PurePosixPath(quoted or angled).parts[0] in LEVEL:
                problems.append(f"{path.relative_to(root)}: includes {quoted or angled}: an example uses public headers only")
    return problems


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    problems = check(root)
    print("\n".join(problems) or "layers: every include points downwards, none in a circle")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
