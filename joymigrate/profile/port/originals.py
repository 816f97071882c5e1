"""An extension's own C++ and CUDA sources, written so that they build for the CPU.

The system's compiler builds them: as they are, or, where CUDA files belong to them, behind
`cuda_on_cpu.h`, which runs a kernel's threads as fibers. Nothing is translated, so what builds
computes what its source says; what a GPU would round otherwise (fused multiply-adds, fast
functions) is computed as C++ does.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from joymigrate.profile.port.operators import BoundOperator, Build, closing, find_builds, plain

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
SOURCE = (".cpp", ".cc", ".cxx")
DEVICE = ".cu"
QUALIFIERS = re.compile(
    r"\b(__global__|__device__|__host__|__forceinline__|__noinline__|__constant__"
    r"|__launch_bounds__\s*\([^)]*\)|__align__\s*\([^)]*\)|C10_HOST_DEVICE|C10_LAUNCH_BOUNDS_\d\s*\([^)]*\))"
)
LAUNCH = re.compile(r"([\w:]+)\s*(<(?!<)[^<>;{}]*>)?\s*<<<(.*?)>>>\s*\(", re.DOTALL)
DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:__align__\s*\(\d+\)\s*)?([\w:\s]+?)\s*(\w+)\s*\[\s*\]"
)
INCLUDED = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*[<"]'
    r'((?:ATen/cuda|c10/cuda|THC|cuda|device_|vector_types)[^>"]*).*$',
    re.M,
)
LIBRARY = r'(\bTORCH_LIBRARY(?:_FRAGMENT|_IMPL)?\s*\(\s*|"){space}(?=\s*,|::)'
TEXT = '''HERE = {where} / {folder!r}


@functools.cache
def built():
    """The operator of the sources in `HERE`, built for the CPU at the first call (a minute)."""
    made = cpp_extension.load(
        name={name!r}, sources=[str(HERE / one) for one in {sources!r}],
        extra_include_paths=[str(HERE / one) for one in {include!r}],
        extra_cflags={flags}, is_python_module={module!r}, with_cuda=False,
    )
    return getattr({owner}, {operator!r})


def on_cpu(*given):
    """Call it with the tensors on the CPU; what it writes into goes back, as its results do."""
    leaves = torch.utils._pytree.tree_leaves(given)
    devices = [one.device for one in leaves if isinstance(one, torch.Tensor)]
    moved = torch.utils._pytree.tree_map_only(torch.Tensor, lambda one: one.cpu(), given)
    made = built()(*moved)
    for before, after in zip(leaves, torch.utils._pytree.tree_leaves(moved)):
        if after is not before and isinstance(after, torch.Tensor):
            if not torch.equal(before.cpu(), after):
                with torch.no_grad():
                    before.copy_(after)
    device = devices[0] if devices else torch.device("cpu")
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda one: one.to(device), made)
'''


@dataclass(frozen=True, slots=True)
class OriginalSources:
    """The sources of an operator, and the folder that Python's text finds them in."""

    operator: BoundOperator
    sources: tuple[str, ...]  # names below `folder`
    include: tuple[str, ...]
    texts: dict[str, str]
    on_device: bool  # behind the header, with the CUDA files

    def write(self, folder: Path) -> None:
        """The sources as they are built, below a folder; those that are there stay, built."""
        for name, text in self.texts.items():
            path = folder / self.folder / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")

    @property
    def digest(self) -> str:
        """What tells one set of sources from another."""
        return hashlib.sha256(repr(sorted(self.texts.items())).encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """The folder of the sources, beside the references."""
        return f"original_{self.digest}"

    def text(self, folder: Path | None = None) -> str:
        """Python that builds the sources, in a folder or beside the text, and calls the operator
        with its tensors moved to the CPU."""
        one = self.operator
        module = one.kind == "pybind11"
        name = re.sub(r"\W", "_", f"{one.module.rpartition('.')[2]}_{self.digest}")
        header = f', "-include", str(HERE / {HEADER.name!r})' if self.on_device else ""
        return TEXT.format(
            where=f"Path({str(folder.resolve())!r})" if folder else "Path(__file__).parent",
            folder=self.folder, name=name, sources=list(self.sources),
            include=["", *self.include], flags=f'["-O1", "-w"{header}]', module=module,
            owner="made" if module else f"torch.ops.{one.module}_original",
            operator=one.name.partition(".")[0],
        )  # fmt: skip


def find_originals(
    one: BoundOperator, python: Iterable[Path], native: list[Path]
) -> Iterator[OriginalSources]:
    """What can be built of an operator: its host files alone, then with the CUDA files."""
    builds = [build for path in python for build in find_builds(path)]
    inline = [build for build in builds if build.path == one.path and build.texts]
    if inline:
        yield of_strings(one, inline[0])
        return
    files = list_sources(one, builds, native)
    host = [path for path in files if path.suffix in SOURCE]
    if host:
        yield of_files(one, host, native, on_device=False)
    if len(host) < len(files):
        yield of_files(one, files, native, on_device=True)


def list_sources(one: BoundOperator, builds: list[Build], native: list[Path]) -> list[Path]:
    """The files that a build lists with the one that binds; else those beside it."""
    able = [path for path in native if path.suffix in (*SOURCE, DEVICE)]
    fitting = [build for build in builds if Path(one.path).name in build.sources] or builds
    names = fitting[0].sources if fitting else frozenset()
    found = [path for path in able if any(fnmatchcase(path.name, name) for name in names)]
    return found or [path for path in able if path.parent == Path(one.path).parent]


def of_files(
    one: BoundOperator, files: list[Path], native: list[Path], *, on_device: bool
) -> OriginalSources:
    """An operator's files, with every header of the project."""
    root = Path(os.path.commonpath([path.resolve().parent for path in native]))
    texts, sources = {}, []
    for path in native:
        name = path.resolve().relative_to(root).as_posix()
        if path in files:
            name = f"{name}.cpp" if path.suffix == DEVICE else name
            sources.append(name)
        text = path.read_text("utf-8", "replace")
        own = {each.name for each in native}
        made = as_cpp(text, one.module, own) if on_device else rename_library(text, one.module)
        texts[name] = made
    include = tuple(sorted({Path(name).parent.as_posix() for name in texts}))
    return prepare_sources(one, sources, include, texts, on_device)


def of_strings(one: BoundOperator, build: Build) -> OriginalSources:
    """C++ in strings, which `load_inline` binds by name."""
    text = as_cpp("\n".join(build.texts), one.module)
    if build.functions:
        bound = "".join(f' m.def("{name}", &{name});' for name in build.functions)
        text += f"\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{{bound} }}\n"
    return prepare_sources(one, ["inline.cpp"], (), {"inline.cpp": text}, True)


def prepare_sources(
    one: BoundOperator, sources: list[str], include: tuple[str, ...], texts: dict[str, str],
    on_device: bool,
) -> OriginalSources:  # fmt: skip
    """An original with the header that it stands behind."""
    if on_device:
        texts = {**texts, HEADER.name: HEADER.read_text(encoding="utf-8")}
    return OriginalSources(one, tuple(sources), include, texts, on_device)


def rename_library(text: str, space: str) -> str:
    """A library's sources under another namespace, so that its own one stays free."""
    if not space:
        return text
    return re.sub(LIBRARY.format(space=re.escape(space)), rf"\g<1>{space}_original", text)


def as_cpp(text: str, space: str, own: Collection[str] = ()) -> str:
    """CUDA's own spelling as C++ behind the header, which stands for CUDA's headers but not for
    the project's `own` ones; comments are blanked."""
    text = DYNAMIC.sub(r"\1* \2 = reinterpret_cast<\1*>(::cuda_on_cpu::memory)", plain(text))
    text = INCLUDED.sub(lambda one: one[0] if Path(one[1]).name in own else "", text)
    text = re.sub(r"\.type\(\)\s*\.\s*is_cuda\(\)", ".is_cuda()", text)
    text = QUALIFIERS.sub(" ", text.replace("__shared__", "static"))
    made, at = "", 0
    while match := LAUNCH.search(text, at):
        end = closing(text, match.end() - 1)
        given = text[match.end() : end].strip()
        call = f"{match[1]}{match[2] or ''}"
        made += (
            f"{text[at : match.start()]}::cuda_on_cpu::launch(::cuda_on_cpu::Shape({match[3]}), "
            f"[&](auto... one) {{ {call}(one...); }}{', ' if given else ''}{given})"
        )
        at = end + 1
    return rename_library(made + text[at:], space)
