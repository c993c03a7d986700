"""Fails if a link in a Markdown document leads to a file, a folder or a heading that does not exist.

    python3 tools/check_links.py
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors_of(text):
    """Returns GitHub's anchors of the headings: words in lower case with a hyphen for each space."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}


def problems_of(page):
    for path, anchor in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{path} does not exist"
        elif anchor and anchor not in anchors_of(target.read_text(encoding="utf-8")):
            yield f"{path} has no heading #{anchor}"


if __name__ == "__main__":
    LIST_PAGES = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    PAGES = [ROOT / name for name in subprocess.check_output(LIST_PAGES, text=True).split() if (ROOT / name).exists()]
    PROBLEMS = [f"{page.relative_to(ROOT)}: {problem}" for page in PAGES for problem in problems_of(page)]
    print("\n".join(PROBLEMS) or f"links: those of {len(PAGES)} pages lead somewhere")
    sys.exit(bool(PROBLEMS) or not PAGES)
