"""Prints what `pip install --dry-run --report FILE` would fetch: first the sum in MiB, then one line for each large file.

Sizes come from the disk, or from the server's answer to a HEAD request; a server that does not answer counts as 0 and
is named as unknown.
"""

import json
import os
import re
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request

MIB = 1024 * 1024
LISTED_MIB = 20


def certificates():
    """The certificates that pip trusts; a small system has none of its own."""
    if os.environ.get("PIP_CERT"):
        return os.environ["PIP_CERT"]
    settings = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    named = re.search(r"^(?:global|install)\.cert='(.*)'$", settings.stdout, re.MULTILINE)
    if named:
        return named[1]
    try:
        from pip._vendor import certifi  # pylint: disable=import-outside-toplevel
        return certifi.where()
    except ImportError:
        return None


def size_of(url, context):
    """Bytes behind a URL, or None if they cannot be found out."""
    parts = urllib.parse.urlparse(url)
    try:
        if parts.scheme == "file":
            return os.path.getsize(urllib.request.url2pathname(parts.path))
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def describe(install):
    """Splits pip's plan into a sum in MiB and the lines to print."""
    total = unknown = small = 0
    lines = []
    context = ssl.create_default_context(cafile=certificates())
    for item in install:
        name = f'{item["metadata"]["name"]} {item["metadata"]["version"]}'
        url = item["download_info"]["url"]
        size = size_of(url, context)
        where = "on disk" if url.startswith("file:") else "to download"
        if size is None:
            unknown += 1
            lines.append(f"  {name}: size unknown")
        elif size < LISTED_MIB * MIB:
            small += 1
        else:
            lines.append(f"  {name}: {size / MIB:.0f} MiB {where}")
        total += size or 0
    if small:
        lines.append(f"  {small} smaller packages")
    at_least = "at least " if unknown else ""
    kind = "CPU build" if any("+cpu" in i["metadata"]["version"] for i in install) else None
    if any(i["metadata"]["name"].startswith(("nvidia", "cuda")) for i in install):
        kind = "GPU build; a CPU one is much smaller: point pip to it, or name a LibTorch by FSDP_TORCH"
    lines.append(f"  together {at_least}{total / MIB:.0f} MiB" + (f" ({kind})" if kind else ""))
    return total // MIB + 1, lines


def main():
    with open(sys.argv[1], encoding="utf-8") as report:
        mib, lines = describe(json.load(report)["install"])
    print(mib)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
