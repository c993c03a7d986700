"""Puts everything that scripts/gpu_check --run needs into one folder.

    python3 tools/gpu_check/bundle.py BUILD BUNDLE PROGRAM...

The folder gets programs of BUILD, stripped and without the paths of this machine, the scripts, and the libraries that
the programs need besides glibc and torch's packages. BUNDLE/bundle.json says which torch the bundle is for.
"""

import json
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import provenance  # pylint: disable=wrong-import-position

SCRIPTS = ("tools/gpu_check/*.py", "bench/*.py", "bench/peers/*.py")
MOST_MIB = 60
# The parts of glibc. Every machine has its own, and programs also run with a newer one.
GLIBC = re.compile(r"^(ld-linux|lib(c|m|dl|rt|pthread|util|resolv|anl|nsl|mvec)\.so)")


def libraries_of(ldd):
    """Returns {name: path} from the output of ldd."""
    return dict(re.findall(r"^\s*(\S+) => (/\S+) \(", ldd, re.MULTILINE))


def carried(libraries, torch):
    """Returns the paths of the libraries that a machine with the same torch may lack."""
    packages = torch.parent
    return sorted({path for name, path in libraries.items()
                   if not GLIBC.match(name) and packages not in pathlib.Path(path).resolve().parents})


def run(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gpu_check: {command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def needed_libraries(programs):
    libraries = {}
    for program in programs:
        libraries |= libraries_of(run("ldd", program))
    return libraries


def without_traces(files):
    """Removes debug symbols and paths of this machine from programs and libraries."""
    run("strip", *files)
    with tempfile.NamedTemporaryFile("w", suffix=".cmake") as script:
        script.writelines(f'file(RPATH_REMOVE FILE "{file}")\n' for file in files)
        script.flush()
        run("cmake", "-P", script.name)


def copy_to(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    return [pathlib.Path(shutil.copy(file, folder)) for file in files]


def describe(torch):
    version = runpy.run_path(str(torch / "version.py"))
    return {"torch": version["__version__"], "cuda": version["cuda"], "commit": provenance.commit(ROOT),
            "made": provenance.date()}


def make(build, bundle, names):
    programs = [build / "bin" / name for name in names]
    libraries = needed_libraries(programs)
    if "libtorch_cuda.so" not in libraries:
        sys.exit(f"gpu_check: {build} is not linked with a GPU build of torch")
    torch = pathlib.Path(libraries["libtorch_cuda.so"]).resolve().parents[1]
    shutil.rmtree(bundle, ignore_errors=True)
    copied = copy_to(bundle / "bin", programs) + copy_to(bundle / "lib", carried(libraries, torch))
    without_traces(copied)
    for pattern in SCRIPTS:
        for script in ROOT.glob(pattern):
            copy_to(bundle / script.parent.relative_to(ROOT), [script])
    (bundle / "bundle.json").write_text(json.dumps(describe(torch)) + "\n", encoding="utf-8")


def main():
    build, bundle = map(pathlib.Path, sys.argv[1:3])
    make(build, bundle, sys.argv[3:])
    mib = sum(file.stat().st_size for file in bundle.rglob("*")) / 2**20
    if mib > MOST_MIB:
        sys.exit(f"gpu_check: {bundle} has {mib:.0f} MiB, more than {MOST_MIB}")
    libraries = ", ".join(file.name for file in sorted((bundle / "lib").iterdir()))
    print(f"gpu_check: {bundle}: {mib:.0f} MiB, with {libraries}")


if __name__ == "__main__":
    main()
