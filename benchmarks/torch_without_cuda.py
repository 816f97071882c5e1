"""Make a torch build for CUDA importable without CUDA's libraries, for runs on the CPU.

The package index has no CPU builds of torch for Linux on x86; its builds are linked against some
3 GB of CUDA libraries, of which nothing is called on a machine without a GPU. Each library gets a
stand-in beside torch's own ones: the names that torch looks for, and functions that fail.
"""

from __future__ import annotations

import mmap
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from joymigrate.run.rehearse.symbols import read_library

CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl|cupti)")
CUDA_FUNCTION = re.compile(r"(__cuda|cu|nv|nccl|Nv|cupti)")
NEEDS = re.compile(r"\s+required from (\S+):")
VERSION = re.compile(r"\s+0x[0-9a-f]+ 0x[0-9a-f]+ \d+ (\S+)")
# Both torch's CUDA part and torch_npu from 2.10 on register these settings of an allocator, and one
# process can't do both. The names in the CUDA part, which nothing uses here, get another end. A
# compiler may have cut a name into overlapping pieces of 16 bytes.
SETTINGS = re.compile(
    rb"pinned_reserve_s(?:_segment_size_m|egment_size_m)b"
    rb"|per_process_memo(?:_memory_fractio|ry_fractio)n"
)
FAILED = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE


def add_stand_ins(folder: Path) -> None:
    """Put a stand-in beside the torch in `folder` for each CUDA library that it names."""
    place = folder / "torch" / "lib"
    own = [path for path in place.glob("*.so*") if not CUDA_LIBRARY.match(path.name)]
    for path in own:
        if "cuda" in path.name:
            rename_settings(path)
    write_stand_ins(own, place, CUDA_LIBRARY, CUDA_FUNCTION)


def write_stand_ins(
    own: Sequence[Path],
    place: Path,
    library: re.Pattern[str],
    function: re.Pattern[str],
    beside: Sequence[Path] = (),
) -> list[Path]:
    """A stand-in in `place` for each library named like `library` that those in `own` ask for.

    Each has all functions named like `function` that `own` lacks, and that those `beside` lack.
    Raises OSError without a compiler, CalledProcessError when it fails.
    """
    libraries = [read_library(path) for path in own]
    named = {name for one in libraries for name in one.needed if library.match(name)}
    undefined = {name for one in libraries for name in one.undefined}
    defined = {name for one in [*libraries, *map(read_library, beside)] for name in one.defined}
    functions = sorted(filter(function.match, undefined - defined))
    versions = wanted_versions(own)
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "stand_in.c"
        source.write_text(
            "".join(f"int {name}(void) {{ return {FAILED}; }}\n" for name in functions)
        )
        for name in sorted(named):
            link = [f"-Wl,-soname,{name}"]
            if versions[name]:
                script = Path(temporary) / "versions"
                first, *others = sorted(versions[name])
                blocks = [f"{first} {{ global: *; }};", *(f"{one} {{ }};" for one in others)]
                script.write_text("\n".join(blocks))
                link.append(f"-Wl,--version-script,{script}")
            shared = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", str(place / name)]
            subprocess.run([*shared, str(source), *link], check=True)
    return [place / name for name in sorted(named)]


def rename_settings(path: Path) -> None:
    """Give the settings in a library another name of the same length."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for found in list(SETTINGS.finditer(data)):
            data[found.end() - 1 : found.end()] = b"_"


def wanted_versions(paths: Sequence[Path]) -> dict[str, set[str]]:
    """The symbol versions that libraries ask of each other library."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        told = subprocess.run(
            ["objdump", "-p", str(path)], capture_output=True, text=True, check=True
        )
        library = ""
        for line in told.stdout.splitlines():
            if needs := NEEDS.match(line):
                library = needs[1]
            elif library and (version := VERSION.match(line)):
                found[library].add(version[1])
    return found
