"""Whether the simulated runtime fits other versions of torch_npu, from their wheels alone.

    pip download --no-deps -d wheels torch-npu==2.10.0.post7
    python benchmarks/rehearse_versions.py wheels/*.whl

For each wheel: the runtime is generated and compiled, and every C function of the chip's software
that the wheel's libraries leave undefined must be in it. Functions that do nothing are listed when
the version tested in CI doesn't have them: those are what a new version may need. Nothing is
imported or run.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

from joymigrate.run.rehearse import build, symbols

LIBRARIES = ("libtorch_npu.so", "libtensorpipe.so", "libnpu_profiler.so")


def idle(package: build.Package) -> set[str]:
    """Functions that the generated part answers with nothing."""
    lines = build.stub_source(package).splitlines()
    return {
        line.split("int64_t ")[1].split("(")[0]
        for line in lines
        if line.startswith("JOY_PUBLIC int64_t")
    }


def check(wheel: Path, known: set[str]) -> bool:
    """Build for one wheel and compare symbols; prints one line."""
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("torch_npu/lib/") and name.endswith(LIBRARIES):
                archive.extract(name, folder)
        package = build.Package(Path(folder) / "torch_npu", version)
        made = Path(folder) / "made"
        made.mkdir()
        build.compile_into(made, package)
        offered: set[str] = set()
        for path in made.glob("*.so"):
            offered |= symbols.read_library(path).defined
        wanted = build.c_symbols(package)
        missing = wanted - offered
        kernels = len(symbols.chip_kernels(package.main_library))
        new = sorted(idle(package) - known)
        print(
            f"{version}: {len(wanted)} C functions needed, {len(missing)} missing; {kernels} chip "
            f"kernels; libraries {', '.join(build.needed_libraries(package))}"
        )
        if new:
            print(f"  does nothing, not in the tested version: {', '.join(new)}")
        for name in sorted(missing):
            print(f"  missing: {name}")
    return not missing


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    known = idle(build.find_package())
    return int(False in [check(Path(name), known) for name in sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
