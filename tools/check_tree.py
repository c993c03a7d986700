"""Fails when a tracked file has no place in the repository.

    python3 tools/check_tree.py [ROOT]

Paths of one machine, hosts of package indexes, files that are too long or too large, links to pages that do not exist,
and libraries that clash with the ones inside LibTorch.
"""

import pathlib
import re
import subprocess
import sys

WARN_LINES = 400
MAX_LINES = 600
MAX_BYTES = 2_000_000
# Read by programs, not by people; no limit on lines.
DATA = ("data/",)
PICTURES = "docs/pictures/"
MAX_PICTURE_BYTES = 120_000
PNG = b"\x89PNG\r\n\x1a\n"
CODE = {".h", ".hpp", ".cpp", ".cc", ".py", ".sh", ".cmake", ".supp", ""}

# Written so that this file does not match them.
FORBIDDEN = [
    (re.compile(r"(?<![\w.}$])/(?:work|root|farm|home/\w+)/"), "a path of one machine"),
    (re.compile(r"py[p]i\.org|pythonhosted[.]org|download[.]pytorch[.]org|index[-]url", re.IGNORECASE),
     "a host or an option of a package index"),
]
# Their symbols or headers are inside LibTorch already, in other versions.
CLASHING = re.compile(r"find_package\(\s*(fmt|spdlog|Protobuf|Gloo|glog|gflags)\b", re.IGNORECASE)
ONE_UNIT_ONLY = re.compile(r'#\s*include\s+[<"][^>"]*ProcessGroupGloo\.hpp')
QUOTED = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)  # code in Markdown, where a lambda looks like a link
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def tracked_files(root):
    """What git would commit; in a tree without git, everything but build outputs."""
    git = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root, capture_output=True, text=True, check=False)
    if git.returncode == 0:
        names = [name for name in git.stdout.split("\0") if name]
    else:
        skipped = {".git", ".venv", "build", "__pycache__"}
        names = [str(p.relative_to(root)) for p in root.rglob("*") if not skipped & set(p.relative_to(root).parts)]
    return sorted(name for name in names if (root / name).is_file())


def check_text(name, text, root):
    """Problems of one text file."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, what in FORBIDDEN:
            if pattern.search(line):
                yield f"{name}:{number}: {what}"
    if name.endswith((".cmake", "CMakeLists.txt")) and (match := CLASHING.search(text)):
        yield f"{name}: finds {match[1]}, which clashes with what LibTorch contains"
    if name.endswith(".md"):
        for target in LINK.findall(QUOTED.sub("", text)):
            if not ((root / name).parent / target).exists():
                yield f"{name}: links to {target}, which does not exist"


def check_picture(name, content):
    if not content.startswith(PNG):
        yield f"{name}: not a PNG file"
    if len(content) > MAX_PICTURE_BYTES:
        yield f"{name}: {len(content)} bytes, more than {MAX_PICTURE_BYTES} for a picture"


def check(root):
    """Problems and warnings of a tree, as lines to print."""
    root = pathlib.Path(root).resolve()
    problems, warnings, units = [], [], []
    for name in tracked_files(root):
        path = root / name
        if path.stat().st_size > MAX_BYTES:
            problems.append(f"{name}: {path.stat().st_size} bytes, more than {MAX_BYTES}")
            continue
        if name.startswith(DATA) and path.suffix == ".txt":
            continue
        if name.startswith(PICTURES) and path.suffix == ".png":
            problems += check_picture(name, path.read_bytes())
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            problems.append(f"{name}: not UTF-8 text")
            continue
        problems += check_text(name, text, root)
        if path.suffix in {".h", ".hpp", ".cpp", ".cc"} and ONE_UNIT_ONLY.search(text):
            units.append(name)
        lines = text.count("\n")
        if path.suffix in CODE and path.name != "LICENSE" and lines > WARN_LINES:
            (problems if lines > MAX_LINES else warnings).append(f"{name}: {lines} lines; is it one idea?")
    if len(units) > 1:
        problems.append(f"ProcessGroupGloo.hpp is included by {', '.join(units)}; one unit only")
    return problems, warnings


def main():
    problems, warnings = check(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    for warning in warnings:
        print(f"warning: {warning}")
    print("\n".join(problems) or "tree: nothing that does not belong here")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
