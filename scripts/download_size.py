"""Prints what `pip install --dry-run --report FILE` would fetch: first the sum in MiB, then a line for each large file.

Sizes come from the disk, or from the server's answer to a HEAD request. If the server does not tell the size of a
large package, the sum is at least the known size of a build of torch with all its packages.
"""

import http.client
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
CPU_BUILD_MIB = 300
GPU_BUILD_MIB = 3000
CUDA = ("nvidia", "cuda")
LARGE = ("torch", "triton", *CUDA)


def certificates():
    """Returns the certificates that pip trusts, because a small system has none of its own."""
    if os.environ.get("PIP_CERT"):
        return os.environ["PIP_CERT"]
    command = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(command, capture_output=True, text=True, check=False)
    named = re.search(r"^(?:global|install)\.cert='(.*)'$", settings.stdout, re.MULTILINE)
    if named:
        return named[1]
    try:
        from pip._vendor import certifi  # pylint: disable=import-outside-toplevel
        return certifi.where()
    except ImportError:
        return None


def size_of(url, context):
    """Returns the number of bytes behind a URL, or None if it is unknown."""
    parts = urllib.parse.urlparse(url)
    try:
        if parts.scheme == "file":
            return os.path.getsize(urllib.request.url2pathname(parts.path))
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError, http.client.HTTPException):
        return None


def describe(install):
    """Splits pip's plan into a sum in MiB and the lines to print."""
    total = small = 0
    unknown = []
    lines = []
    context = ssl.create_default_context(cafile=certificates())
    for item in install:
        name = f'{item["metadata"]["name"]} {item["metadata"]["version"]}'
        url = item["download_info"]["url"]
        size = size_of(url, context)
        where = "on disk" if url.startswith("file:") else "to download"
        if size is None:
            unknown.append(name)
            lines.append(f"  {name}: size unknown")
        elif size < LISTED_MIB * MIB:
            small += 1
        else:
            lines.append(f"  {name}: {size / MIB:.0f} MiB {where}")
        total += size or 0
    if small:
        lines.append(f"  {small} smaller packages")
    total, together = sum_up(total, unknown, install)
    return total // MIB + 1, lines + ["  together " + together]


def sum_up(total, unknown, install):
    """Returns the number of bytes to reckon with, and a text that states this number and the kind of build."""
    build_mib, kind = GPU_BUILD_MIB, ""
    if any("+cpu" in i["metadata"]["version"] for i in install):
        build_mib, kind = CPU_BUILD_MIB, " (CPU build)"
    elif any(i["metadata"]["name"].startswith(CUDA) for i in install):
        kind = " (GPU build; a CPU one is much smaller: point pip to it, or name a LibTorch by FSDP_TORCH)"
    if any(name.startswith(LARGE) for name in unknown) and total < build_mib * MIB:
        return build_mib * MIB, f"unknown, counted as {build_mib} MiB{kind}"
    return total, f'{"at least " if unknown else ""}{total / MIB:.0f} MiB{kind}'


def main():
    with open(sys.argv[1], encoding="utf-8") as report:
        mib, lines = describe(json.load(report)["install"])
    print(mib)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
