"""A new chip: a folder that validates as it stands, and a package that brings it along."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from joymigrate.chips.extract import Extractor, SourceTree
from joymigrate.chips.load import SCHEMA, all_chips, origin
from joymigrate.chips.validate import NAME, WORD
from joymigrate.data import ENTRY_POINT_GROUP
from joymigrate.errors import JoyError


@dataclass(frozen=True, slots=True)
class Draft:
    """What the user says about a new chip."""

    name: str
    device: str
    backend: str
    title: str = ""
    package: str | None = None  # the module that registers the device with torch
    distribution: str | None = None


def check(draft: Draft) -> None:
    """Raise `JoyError` for names that commands or Python could not use."""
    if not NAME.fullmatch(draft.name):
        raise JoyError(
            f"{draft.name!r} is not a chip's name",
            help="lower-case letters, digits, - and _, beginning with a letter",
        )
    for option, value in (("--device", draft.device), ("--backend", draft.backend)):
        if not WORD.fullmatch(value):
            raise JoyError(f"{option} {value!r} is not an identifier", help="letters, digits and _")
    taken = {name for chip in all_chips().values() for name in (chip.name, *chip.aliases)}
    if draft.name in taken:
        raise JoyError(
            f"there is a chip called '{draft.name}' already", help="joymigrate chips list"
        )


def names_text(draft: Draft, version: str, sources: Path) -> str:
    """The name list of the chip's package, read from its source below `sources`."""
    package = draft.package or "torch"  # without a package torch itself has torch.<device>
    roots = [f"{package}.{draft.device}", *([package] if draft.package else [])]
    root = next((module for module in roots if module_exists(sources, module)), None)
    if root is None:
        raise JoyError(
            f"no module {' or '.join(roots)} to read names from",
            where=str(sources),
            help="--names-from takes the folder that holds the folder of --package",
        )
    if not re.fullmatch(r"\d+\.\d+", version):
        raise JoyError(f"version {version!r} is not major.minor", help="such as --chip-version 2.7")
    names = sorted(set(Extractor(SourceTree(sources), root).dotted()))
    lines = [
        "# Names of the torch package, by version. Read from source, nothing imported.",
        f"version {version} {draft.distribution or draft.package or 'torch'} module {root}",
        "",
        f"[torch.{draft.device}]",
        *names,
    ]
    return "\n".join(lines) + "\n"


def module_exists(sources: Path, module: str) -> bool:
    """Whether a dotted module lies below `sources`."""
    path = sources / module.replace(".", "/")
    return (path / "__init__.py").is_file() or path.with_suffix(".py").is_file()


def rename_for_device(draft: Draft, names: str) -> dict[str, str]:
    """The origin's names that the listed ones have with the device's name in place of CUDA."""
    listed = {line.split()[0] for line in names.splitlines() if line.strip()}
    found = {}
    for name in sorted(origin().names()):
        own = name.replace("CUDA", draft.device.upper())
        public = not any(part.startswith("_") for part in name.split("."))
        if public and own != name and name not in listed and own in listed:
            found[name] = own
    return found


def chip_text(draft: Draft, *, names: str | None) -> str:
    """A chip.yaml whose every section is there, the unknown ones as comments."""
    list_line = "names: names.txt" if names else "# names: names.txt  # see docs/how-to/chips.md"
    upper = draft.device.upper()
    guessed = ", ".join(f"{k}: {v}" for k, v in rename_for_device(draft, names or "").items())
    guess_note = "from the name list" if guessed else f"CUDAGraph: {upper}Graph"
    own = draft.device != "cuda"
    variable = f"{upper}_VISIBLE_DEVICES" if own else "CUDA_VISIBLE_DEVICES"
    return f"""\
# What joymigrate knows about this chip. Every key is explained in docs/how-to/chips.md;
# `joymigrate chips validate {draft.name}` checks the folder. Leave out what you don't know.
schema: {SCHEMA}
name: {draft.name}
title: {json.dumps(draft.title or draft.name, ensure_ascii=False)}
device: {draft.device}
module: torch.{draft.device}
backend: {draft.backend}
package: {draft.package or "null"}
distribution: {draft.distribution or draft.package or "torch"}
cpu_fallback: false  # true where operators without a kernel run on the CPU

api:
  {list_line}
  import_module: torch.{draft.device}  # what stands in `import …`; else the package itself
  tensor: {{cuda: {draft.device}, is_cuda: is_{draft.device}}}
  renamed: {{{guessed}}}  # {guess_note}
  absent: {{}}   # nvtx: {{note: what to do instead}}
  moved: {{}}    # torch.distributed.is_nccl_available: its name on the chip

environment:
  visible_devices: {{to: {variable}, tier: unsafe, note: check this name}}
  map: {{}}      # NCCL_SOCKET_IFNAME: {{to: …, note: …}}
  keep: {{}}     # CUDA_DEVICE_MAX_CONNECTIONS: why it stays
  report: {{}}   # NCCL_P2P_DISABLE: what to do

tools: {{}}      # nvidia-smi: {{to: …-smi, tier: unsafe}}

launch:
  resource_patterns: []  # names of the device in Kubernetes manifests

skus: []  # - {{name: …, memory_gib: 64, dtypes: [bfloat16], source: data sheet}}

versions: []  # - {{package: "1.0", torch: "2.7.1", sdk: …, source: …}}
"""


def package_texts(draft: Draft) -> dict[str, str]:
    """Files of an outside package that brings the chip: everything but the rules folder."""
    module = f"joymigrate_{draft.name.replace('-', '_')}"
    return {
        "pyproject.toml": f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{module.replace("_", "-")}"
version = "0.1.0"
description = "The chip {draft.name} for joymigrate."
requires-python = ">=3.10"
dependencies = []  # joymigrate reads the folder; the package needs nothing of it

[project.entry-points."{ENTRY_POINT_GROUP}"]
{draft.name} = "{module}:folder"

[tool.hatch.build.targets.wheel]
packages = ["{module}"]
""",
        f"{module}/__init__.py": f'''\
"""The chip {draft.name} for joymigrate: data only."""

from pathlib import Path


def folder() -> Path:
    """The folder with chip.yaml; the entry point of joymigrate."""
    return Path(__file__).parent / "rules"
''',
    }


def write(draft: Draft, target: Path, *, package: bool, names: str | None = None) -> list[Path]:
    """Write the skeleton to `target`, which must be empty or absent; the files written."""
    check(draft)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise JoyError("there is something already", where=str(target), help="-o OTHER_FOLDER")
    module = f"joymigrate_{draft.name.replace('-', '_')}"
    rules = target / module / "rules" if package else target
    texts = {rules / "chip.yaml": chip_text(draft, names=names)}
    if names is not None:
        texts[rules / "names.txt"] = names
    if package:
        texts |= {target / name: text for name, text in package_texts(draft).items()}
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise JoyError(f"cannot write: {error.strerror}", where=str(path)) from None
    return list(texts)
