"""Builds tests/state_fuzz/fuzz.cpp with libFuzzer, and runs it for 30 seconds, or as many as an argument says.

Exits with 77, which ctest reports as skipped, if there is no clang++ with libFuzzer. scripts/setup installs it if it
can.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FORMAT = ROOT / "src/state/format"
CLANGS = ["clang++"] + [f"clang++-{version}" for version in range(22, 13, -1)]
HEADERS = [
    b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}',
    b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}',
]
# The part of a manifest after its checksum.
MANIFEST = b"""",
 "format": "fsdp checkpoint", "version": 2, "step": 1, "world_size": 1, "versions": {"fsdp": "0.1.0"},
 "files": {"a.safetensors": {"bytes": 100, "header_checksum": "00000000000000aa", "host": "a"}},
 "model": {"w": {"dtype": "F32", "shape": [2, 3],
   "parts": [{"file": "a.safetensors", "first_row": 0, "rows": 1, "checksums": ["00000000000000bb"]},
             {"file": "a.safetensors", "offsets": [1, 0], "sizes": [1, 3], "checksums": ["00000000000000cc"]}]}},
 "training": {}, "optimizer": {"kind": "SGD", "groups": [], "state": {}}, "extra": {},
 "states": {"scheduler": {"step_count": 3}}}"""


def build(clang, folder, program):
    """Builds the program, and returns the result of the last compiler that ran. It compiles one object at a time, so
    that ccache keeps them."""
    flags = ["-std=c++20", "-O1", "-g1", "-fsanitize=fuzzer,address,undefined", "-DXXH_INLINE_ALL", f"-I{ROOT / 'src'}"]
    compiler = [*([shutil.which("ccache")] if shutil.which("ccache") else []), clang, *flags]
    sources = [ROOT / "tests/state_fuzz/fuzz.cpp"]
    sources += [FORMAT / f"{name}.cpp" for name in ("checksum", "dtype", "header", "header_json", "manifest")]
    objects = [str(folder / f"{source.stem}.o") for source in sources]
    for command in [*([*compiler, "-c", source, "-o", made] for source, made in zip(sources, objects)),
                    [clang, *flags, *objects, "-o", program]]:
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            break
    return built


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    clang = next((found for name in CLANGS if (found := shutil.which(name))), None)
    if clang is None:
        print("skipped: no clang++ here")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        program, corpus = pathlib.Path(folder, "fuzz"), pathlib.Path(folder, "corpus")
        built = build(clang, pathlib.Path(folder), program)
        if built.returncode:
            print(built.stderr[-4000:])
            print(f"skipped: {clang} has no libFuzzer" if "clang_rt.fuzzer" in built.stderr else "the build failed")
            sys.exit(77 if "clang_rt.fuzzer" in built.stderr else 1)
        corpus.mkdir()
        for number, header in enumerate(HEADERS):
            text = len(header).to_bytes(8, "little") + header + bytes(8)
            (corpus / str(number)).write_bytes(text)
        (corpus / "manifest").write_bytes(MANIFEST)
        # An input has at most 4 KiB. Only the reader's own containers may allocate more than that.
        limits = ["-max_len=4096", "-malloc_limit_mb=1", "-rss_limit_mb=1024", "-timeout=5"]
        sys.exit(subprocess.run([program, corpus, f"-max_total_time={seconds}", "-print_final_stats=1", *limits],
                                cwd=folder, check=False).returncode)


if __name__ == "__main__":
    main()
