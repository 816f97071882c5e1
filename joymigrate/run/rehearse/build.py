"""Builds the simulated chip runtime for the installed torch_npu, once, into a user cache.

The cache's key is the package's version, the machine's architecture and a hash of our sources, so
a new version of either builds anew. Processes that start together wait for one build; a build
that is cut short leaves nothing that could be taken for a finished one.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.rehearse import symbols
from joymigrate.run.rehearse.releases import (
    PACKAGE,
    cache_root,
    choose,
    installed_version,
    refuse_other_torch,
    torch_version,
)

SOURCES = Path(__file__).parent / "shim"
RUNTIME = "libascendcl.so"  # holds everything; the others only lead to it
# Opened at run time, so no library lists them as needed.
BY_NAME = ("libopapi.so", "libhcomm.so", "libnnopbase.so")
# Computed in shim/kernels.c; all others are generated.
COMPUTED = (
    *("InplaceZero", "InplaceFillScalar", "InplaceCopy", "Cast", "ConstantPadNd"),
    *("Triu", "Tril", "NpuFormatCast"),
)
C_PREFIXES = ("acl", "rt", "Msprof", "Hccl", "hccl")
# C++ of the chip's graph and acceleration libraries by its mangled namespace: older releases.
CPP_SYMBOL = re.compile(r"_Z(?:T[VIST])?(?:NK?)?(?:2ge|3atb|4mki|4gert)")
SWITCH = "libjoydispatch.so"  # see dispatch.py
SYSTEM = ("libc.", "libm.", "libdl.", "librt.", "libpthread.", "libstdc++.", "libgcc_s.", "ld-")
INSTALL_COMPILER = (
    "install one: apt-get install gcc libc6-dev (Debian, Ubuntu), "
    "or yum install gcc glibc-devel (openEuler, CentOS); or set CC"
)


@dataclass(frozen=True, slots=True)
class VendorPackage:
    """The installed torch_npu: where it is and which version it says it has."""

    folder: Path
    version: str

    @property
    def main_library(self) -> Path:
        return self.folder / "lib" / "libtorch_npu.so"

    @property
    def graph_folder(self) -> Path:
        """Where the libraries of the graph interface lie (torchair)."""
        return self.folder / "dynamo" / "torchair" / "core"

    def libraries(self) -> list[Path]:
        """The shared libraries that the package loads when imported."""
        names = ("libtensorpipe.so", "libnpu_profiler.so", "libop_plugin_atb.so")
        extra = [self.folder / "lib" / name for name in names]
        graph = sorted(self.graph_folder.glob("*.so"))
        return [self.main_library, *(path for path in extra if path.is_file()), *graph]


def find_package() -> VendorPackage:
    """The torch_npu that rehearsals here run, without importing it; `JoyError` when there is none.

    That of this Python, or the release that `joymigrate rehearse setup` keeps for its torch.
    """
    kept = choose()
    if kept is not None:
        return VendorPackage(kept.folder / PACKAGE, kept.version)
    spec = PathFinder.find_spec("torch_npu")
    if spec is None or not spec.submodule_search_locations:
        raise JoyError(
            "the rehearsal runs the vendor's own package, and torch_npu is not installed",
            help="joymigrate rehearse setup puts the release that fits your torch into a folder of "
            "its own, which only rehearsals see",
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    version = installed_version() or ""
    refuse_other_torch(version, folder)
    package = VendorPackage(folder, version)
    if not package.main_library.is_file():
        raise JoyError(
            "this torch_npu has no compiled library", where=str(folder), help="reinstall torch-npu"
        )
    return package


def cache_folder(package: VendorPackage) -> Path:
    """The folder of this package's build, finished or not."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(Path(symbols.__file__).read_bytes())
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".c", ".h", ".cpp"):
            digest.update(path.read_bytes())
    if needs_switch():
        digest.update(torch_version().encode())
    name = f"{package.version}-{platform.machine()}-{digest.hexdigest()[:16]}"
    return cache_root() / "rehearse" / name


def build(package: VendorPackage) -> Path:
    """The folder with the libraries for `package`, built now unless it was before."""
    folder = cache_folder(package)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JoyError(
            f"cannot write the cache: {error.strerror}",
            where=str(folder.parent),
            help="name a writable folder: JOYMIGRATE_CACHE=/path joymigrate rehearse …",
        ) from None
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():  # another process was first
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            compile_into(made, package)
            made.rename(folder)
    return folder


def compile_into(folder: Path, package: VendorPackage) -> None:
    """Compile our sources and the generated stubs, and link the libraries into `folder`."""
    needed = needed_libraries(package)
    stubs = folder / "stubs.c"
    stubs.write_text(stub_source(package), encoding="ascii")
    objects = [folder / f"{source.stem}.o" for source in sorted(SOURCES.glob("*.c"))]
    flags = ["-std=gnu11", "-fPIC", "-fvisibility=hidden", "-pthread", f"-I{SOURCES}"]
    for source, target in zip(sorted(SOURCES.glob("*.c")), objects, strict=True):
        run_compiler([*flags, "-O2", "-c", str(source), "-o", str(target)])
    run_compiler([*flags, "-O0", "-c", str(stubs), "-o", str(folder / "stubs.o")])
    objects.append(folder / "stubs.o")
    link = ["-shared", "-pthread"]
    run_compiler([*link, "-o", str(folder / RUNTIME), f"-Wl,-soname,{RUNTIME}", *map(str, objects)])
    empty = folder / "empty.c"
    empty.write_text("typedef int nothing;\n", encoding="ascii")
    leads = ["-Wl,--no-as-needed", str(folder / RUNTIME), "-Wl,-rpath,$ORIGIN"]
    for name in needed:
        named = ["-o", str(folder / name), f"-Wl,-soname,{name}"]
        run_compiler([*link, *named, str(empty), *leads])
    for path in (empty, *objects):
        path.unlink()
    if needs_switch():
        compile_switch(folder / SWITCH)


def torch_folder() -> Path:
    """The folder of the torch that programs here import; nothing is imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        raise JoyError("a rehearsal needs torch", help="pip install 'joymigrate[torch]'")
    return Path(spec.origin).parent


def needs_switch() -> bool:
    """Whether this torch can't hand out a registered kernel, as it can from 2.9 on."""
    source = torch_folder() / "library.py"
    return "def get_kernel(" not in source.read_text(encoding="utf-8")


def compile_switch(target: Path) -> None:
    """Compile shim/dispatch.cpp against the headers of this torch (about ten seconds)."""
    torch = torch_folder()
    core = symbols.read_library(torch / "lib" / "libc10.so")
    errors = (name for name in core.defined if name.startswith("_ZN3c105ErrorC"))
    abi = int(any("__cxx11" in name for name in errors))  # which std::string torch was built with
    includes = [f"-I{torch / 'include'}"]
    flags = ["-std=c++17", "-O1", "-fPIC", "-w", "-fno-access-control", "-fvisibility=hidden"]
    libraries = [f"-L{torch / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"]
    unresolved = ["-Wl,--allow-shlib-undefined"]  # of torch's other libraries
    source = str(SOURCES / "dispatch.cpp")
    options = [*flags, f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *includes, "-shared", source]
    run_compiler([*options, "-o", str(target), *libraries, *unresolved], compiler_cxx())


def needed_libraries(package: VendorPackage) -> list[str]:
    """Names of the chip's libraries that the package asks for, without the runtime itself."""
    places = [package.folder / "lib", package.graph_folder, torch_folder() / "lib"]
    names = {name for path in package.libraries() for name in symbols.read_library(path).needed}
    own = {name for name in names if any((place / name).exists() for place in places)}
    system = {name for name in names if name.startswith(SYSTEM)}
    return sorted((names - own - system | set(BY_NAME)) - {RUNTIME})


def is_computed(kernel: str, written: str) -> bool:
    """Whether the second function of a chip kernel stands in the sources."""
    return kernel.removeprefix("aclnn") in COMPUTED or f" {kernel}(" in written


def stub_source(package: VendorPackage) -> str:
    """C for the chip kernels that are only counted, and for functions that have nothing to do."""
    kernels = symbols.chip_kernels(package.main_library)
    written = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.c"))
    names = [f'  "{name}",' for name in kernels]
    counted = [
        f"{'COMPUTED' if is_computed(name, written) else 'KERNEL'}({number}, {name})"
        for number, name in enumerate(kernels)
    ]
    numbers = [
        f"int joy_number_{name} = {kernels.index('aclnn' + name)};"
        if "aclnn" + name in kernels
        else f"int joy_number_{name} = -1;"
        for name in COMPUTED
    ]
    idle = [
        f"JOY_PUBLIC int64_t {name}(void) {{ return 0; }}"
        for name in sorted(c_symbols(package))
        if f" {name}(" not in written and f"*{name}(" not in written
    ]
    return "\n".join(
        [
            '#include "joy.h"',
            '#include "entry.h"',
            "static const char *const names[] = {",
            *names,
            "};",
            "#define COMPUTED(number, name) JOY_ENTRY(number, name##GetWorkspaceSize)",
            "#define KERNEL(number, name) COMPUTED(number, name) \\",
            "  JOY_PUBLIC int name(void) { return 0; }",
            *counted,
            *numbers,
            "__attribute__((constructor)) static void table(void) {",
            f"  joy_kernel_table(names, {len(kernels)});",
            "}",
            *idle,
            "",
        ]
    )


def c_symbols(package: VendorPackage) -> set[str]:
    """The runtime's functions that the package's libraries leave undefined, by linkage name."""
    undefined: set[str] = set()
    for path in package.libraries():
        undefined |= symbols.read_library(path).undefined
    return {name for name in undefined if name.startswith(C_PREFIXES) or CPP_SYMBOL.match(name)}


def compiler() -> list[str]:
    """The C compiler's command: CC, else cc, gcc or clang."""
    return find_compiler("CC", "cc", "gcc", "clang")


def compiler_cxx() -> list[str]:
    """The C++ compiler's command: CXX, else c++, g++ or clang++."""
    return find_compiler("CXX", "c++", "g++", "clang++")


def find_compiler(variable: str, *names: str) -> list[str]:
    """The command that the environment variable holds, else the first of these that is there."""
    named = os.environ.get(variable)
    if named:
        return shlex.split(named)
    for name in names:
        if shutil.which(name):
            return [name]
    if variable == "CXX":
        raise JoyError(
            f"beside torch {torch_version()} the rehearsal device needs a C++ compiler",
            help="install one: apt-get install g++ (Debian, Ubuntu), or yum install gcc-c++ "
            "(openEuler, CentOS); or set CXX. From torch 2.9 on a C compiler is enough",
        )
    raise JoyError("the rehearsal device is built with a C compiler", help=INSTALL_COMPILER)


def run_compiler(arguments: list[str], command: list[str] | None = None) -> None:
    """Run the compiler; a failure becomes one error with the compiler's first message."""
    command = [*(command or compiler()), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise JoyError(
            f"cannot run the compiler '{command[0]}': {error.strerror}", help=INSTALL_COMPILER
        ) from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise JoyError(
            f"the compiler failed: {lines[0].strip()}",
            where=shlex.join(command),
            help=f"if a header is missing, {INSTALL_COMPILER}",
        )
