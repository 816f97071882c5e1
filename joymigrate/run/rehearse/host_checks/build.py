"""Builds the library of host checks from checkouts, once per version, into the user's cache.

Objects stay in the cache, so a build that was cut short goes on where it was. A file that can't be
compiled leaves its kernels unasked; it is named in `build.json` and counted in every report.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import write_output
from joymigrate.run.rehearse import symbols
from joymigrate.run.rehearse.build import Package
from joymigrate.run.rehearse.host_checks import recipe
from joymigrate.run.rehearse.host_checks.checkouts import Checkouts
from joymigrate.run.rehearse.releases import cache_root

LIBRARY = "libjoyhost.so"
SUMMARY = "build.json"


@dataclass(frozen=True, slots=True)
class HostChecks:
    """A finished build: the library, what it was made of, and the kernels it can be asked for."""

    library: Path
    label: str
    called: int  # kernels that the package calls
    kernels: frozenset[str]
    left_out: dict[str, str]  # file: why it could not be compiled


def folder_of(checkouts: Checkouts, package: Package) -> Path:
    """The cache folder of these versions with this recipe."""
    digest = hashlib.sha256(repr(sorted(checkouts.versions.items())).encode())
    digest.update(str(checkouts.root).encode())
    return cache_root() / "host_checks" / f"{package.version}-{digest.hexdigest()[:16]}"


def recipe_digest() -> str:
    """A build of another recipe is not finished, though most of its objects serve."""
    digest = hashlib.sha256()
    for path in sorted([Path(recipe.__file__), *recipe.STAND_INS.rglob("*.*")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def object_of(unit: recipe.Unit, objects: Path) -> Path:
    """Where the object of a file is kept: another way to compile it makes another object."""
    digest = hashlib.sha256(repr(unit.ways).encode())
    if unit.layer == "base":  # our own stand-ins change
        digest.update(unit.source.read_bytes())
    return objects / f"{unit.name}.{digest.hexdigest()[:8]}.o"


def read_build(checkouts: Checkouts, package: Package) -> HostChecks | None:
    """The finished build of these checkouts; None where there is none."""
    folder = folder_of(checkouts, package)
    try:
        raw = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if raw.get("recipe") != recipe_digest():
        return None
    library = folder / LIBRARY
    kernels = frozenset(raw["kernels"])
    return HostChecks(library, raw["label"], raw["called"], kernels, raw["left_out"])


def build(
    checkouts: Checkouts, package: Package, *, jobs: int = 0, tell: Callable[[str], None] = print
) -> HostChecks:
    """Compile and link what is not there yet. `tell` receives one line of progress now and then.

    Raises `JoyError` without a C++ compiler, or where the base can't be compiled or linked.
    """
    folder = folder_of(checkouts, package)
    objects = folder / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = read_build(checkouts, package)
        if done is not None:
            return done
        called = set(symbols.chip_kernels(package.main_library))
        precompiled = folder / "precompiled.h"
        precompile(precompiled, checkouts)
        todo = list(recipe.units(checkouts, called, precompiled))
        failed = compile_all(todo, objects, jobs or os.cpu_count() or 1, tell)
        tell("linking")
        kernels = link(todo, objects, folder, checkouts, failed)
        raw: dict[str, Any] = {
            "recipe": recipe_digest(),
            "label": checkouts.label,
            "versions": checkouts.versions,
            "called": len(called),
            "kernels": sorted(kernels & called),
            "left_out": dict(sorted(failed.items())),
        }
        write_output(folder / SUMMARY, json.dumps(raw, indent=1).encode())
    built = read_build(checkouts, package)
    assert built is not None
    return built


def precompile(header: Path, checkouts: Checkouts) -> None:
    """The header that most files share, compiled once: it is most of their time."""
    made = header.with_suffix(".h.gch")
    if made.is_file():
        return
    header.write_text(recipe.PRECOMPILED, encoding="ascii")
    includes = recipe.general_includes(checkouts.root)
    error = run([*recipe.FLAGS, *includes, "-x", "c++-header", str(header), "-o", str(made)])
    if error:
        raise JoyError(
            f"the checkouts' base headers do not compile: {error}",
            where=str(checkouts.root),
            help="use one branch for all repositories; GCC 12 is known to work",
        )


def compile_all(
    todo: Sequence[recipe.Unit], objects: Path, jobs: int, tell: Callable[[str], None]
) -> dict[str, str]:
    """Compile what has no object yet. Returns the files that failed, with the first error."""
    failed: dict[str, str] = {}
    total, made = len(todo), 0

    def one(unit: recipe.Unit) -> tuple[recipe.Unit, str]:
        return unit, compile_unit(unit, object_of(unit, objects))

    with ThreadPoolExecutor(jobs) as pool:
        for unit, error in pool.map(one, todo):
            made += 1
            if error:
                failed[str(unit.source)] = error
                if unit.needed:
                    raise JoyError(
                        f"a stand-in does not fit these checkouts: {error}",
                        where=str(unit.source),
                        help="apt-get install nlohmann-json3-dev"
                        if "nlohmann" in error
                        else "use one branch for all repositories",
                    )
            if made % 50 == 0 or made == total:
                tell(f"compiled {made} of {total} files, {len(failed)} could not be")
    return failed


def compile_unit(unit: recipe.Unit, target: Path) -> str:
    """Compile one file in the first way that works. Empty when done, else the first error."""
    if target.is_file():
        return ""
    part = target.with_suffix(".part.o")
    error = ""
    for way in unit.ways:
        error = run([*way, "-c", str(unit.source), "-o", str(part)])
        if not error:
            part.replace(target)
            return ""
    return error


def run_output(arguments: Sequence[str]) -> str:
    """What the C++ compiler prints."""
    command = [os.environ.get("CXX") or "g++", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def run(arguments: Sequence[str]) -> str:
    """Run the C++ compiler. Empty when it went well, else its first error."""
    command = [os.environ.get("CXX") or "g++", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, errors="replace"
        )
    except OSError as error:
        raise JoyError(
            f"cannot run the C++ compiler '{command[0]}': {error.strerror}",
            help="apt-get install g++ (Debian, Ubuntu), yum install gcc-c++ (openEuler)",
        ) from None
    if not done.returncode:
        return ""
    lines = [line for line in done.stderr.splitlines() if "error: " in line or "undefined" in line]
    return (lines or ["no message"])[0].strip()


def link(
    todo: Sequence[recipe.Unit],
    objects: Path,
    folder: Path,
    checkouts: Checkouts,
    failed: dict[str, str],
) -> set[str]:
    """One library per layer, since repositories repeat names, and one that leads to all.

    Returns the kernels that can be asked for.
    """
    layers = ("base", *checkouts.operators)
    kernels: set[str] = set()
    before: list[str] = []
    for layer in layers:
        files = [object_of(u, objects) for u in todo if u.layer == layer]
        listed = folder / f"{layer}.rsp"
        listed.write_text("\n".join(f'"{p}"' for p in files if p.is_file()), encoding="utf-8")
        name = f"joyhost_{layer}"
        error = run(
            ["-shared", "-fPIC", "-o", str(folder / f"lib{name}.so"), "-Wl,-z,muldefs",
             "-Wl,-z,lazy", "-Wl,-Bsymbolic-functions", "-s", f"@{listed}", f"-L{folder}",
             "-Wl,-rpath,$ORIGIN", *before, "-lpthread", "-ldl"]
        )  # fmt: skip
        if error:
            raise JoyError(f"the host checks of {layer} do not link: {error}", where=str(folder))
        before.insert(0, f"-l{name}")
        if layer != "base":
            defined = symbols.read_library(folder / f"lib{name}.so").defined
            kernels |= {
                n.removesuffix(symbols.SUFFIX) for n in defined if n.endswith(symbols.SUFFIX)
            }
    before.insert(0, stand_for_missing(layers, folder))
    empty = folder / "empty.cpp"
    empty.write_text("typedef int nothing;\n", encoding="ascii")
    error = run(["-shared", "-fPIC", "-o", str(folder / LIBRARY), str(empty), "-Wl,--no-as-needed",
                 f"-L{folder}", "-Wl,-rpath,$ORIGIN", *before])  # fmt: skip
    if error:
        raise JoyError(f"the host checks do not link: {error}", where=str(folder))
    return kernels


def stand_for_missing(layers: Sequence[str], folder: Path) -> str:
    """A library that defines what no layer does, so that a call of it ends as a crash that can be
    caught (an unresolved symbol would end the program). Returns the linker's option."""
    libraries = [symbols.read_library(folder / f"libjoyhost_{layer}.so") for layer in layers]
    known: set[str] = set().union(*(library.defined for library in libraries))
    known |= system_symbols()
    missing = set().union(*(library.undefined for library in libraries)) - known
    source = folder / "missing.c"
    # Outside of a question they do nothing: destructors run when the program ends.
    # And they are not registered at all: the libraries stay until the process is gone.
    head = "#include <stdlib.h>\nint joy_host_asking;\n"
    head += "int __cxa_atexit(void *f, void *a, void *d) { return 0; }\n"
    bodies = [
        f'long joy_missing_{n}(void) __asm__("{name}");\n'
        f"long joy_missing_{n}(void) {{ if (joy_host_asking) abort(); return 0; }}\n"
        for n, name in enumerate(sorted(missing))
    ]
    source.write_text(head + "".join(bodies), encoding="ascii")
    target = str(folder / "libjoyhost_missing.so")
    error = run(["-x", "c", "-shared", "-fPIC", "-w", "-o", target, str(source)])
    if error:
        raise JoyError(f"the host checks do not link: {error}", where=str(source))
    return "-ljoyhost_missing"


def system_symbols() -> set[str]:
    """What the compiler's own libraries define, the loader among them (`__tls_get_addr`)."""
    known: set[str] = set()
    todo = ["libstdc++.so.6", "libc.so.6", "libm.so.6", "libgcc_s.so.1"]
    for name in todo:
        path = Path(run_output(["-print-file-name=" + name]))
        if not path.is_absolute():
            path = Path(run_output(["-print-file-name=libc.so.6"])).parent / name
        library = symbols.read_library(path)
        known |= library.defined
        todo += [n for n in library.needed if n not in todo]
    return known


def tell_progress(line: str) -> None:
    """One line of progress on stderr."""
    print(f"host checks: {line}", file=sys.stderr, flush=True)
