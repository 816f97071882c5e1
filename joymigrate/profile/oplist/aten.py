"""Torch's own table of operators: which are made of others, which are views, which need a kernel.

Read from `native_functions.yaml`, which the torch wheel holds as a part of torchgen. Neither is
imported: the file is scanned by line, fifty times faster than a YAML parser reads it. The scan
relies on the file's fixed layout (one `- func:` per operator, keys indented by two).

Where no torch is installed, the table of the torch release that joymigrate was tested with counts:
`rules/common/ops/torch_operators.txt`, in the same layout. Every citation names the version.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from joymigrate.chips import rules_root
from joymigrate.errors import JoyError

FILE = Path("packaged") / "ATen" / "native" / "native_functions.yaml"
STAMP = re.compile(r"# torch (\S+)\n")  # first line of the table that joymigrate brings along
FUNCTION = re.compile(r"- func: (?P<name>[\w.]+)\((?P<arguments>.*)\) *-> *(?P<result>.*)")
KEY = re.compile(r"  (?P<key>\w+):\s*(?P<value>.*)")
INNER = re.compile(r"    (?P<keys>[\w, ]+):\s*(?P<value>\S*)")
EXPLICIT = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
IMPLICIT = "CompositeImplicitAutograd"


@dataclass(frozen=True, slots=True)
class SchemaParameter:
    """One parameter of a schema: `kind` is tensor, tensors, or value."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class AtenOp:
    """One overload. `keys` are the dispatch keys that torch has kernels for.

    `composite` is "implicit" (made of other operators, differentiable through them), "explicit"
    (a view, or made of others, with a gradient of its own), or "" (needs a kernel).
    """

    name: str  # base.overload, or base
    arguments: tuple[SchemaParameter, ...]
    keys: frozenset[str]
    composite: str
    delegate: str | None  # the out variant whose kernel computes this one
    generated: bool = False  # torch generates it from another overload
    schema: str = ""  # the parameters as written: `Tensor self, *, int dim=0`

    @property
    def base(self) -> str:
        """The name without the overload."""
        return self.name.partition(".")[0]

    @property
    def overload(self) -> str:
        """The overload, empty for the default one."""
        return self.name.partition(".")[2]


@dataclass(frozen=True, slots=True)
class AtenTable:
    """All overloads of one torch version, by name; `bases` lists overloads of a base name."""

    version: str
    path: str
    ops: Mapping[str, AtenOp]
    bases: Mapping[str, tuple[str, ...]]

    @property
    def source(self) -> str:
        """How a statement from here is cited."""
        return f"torch {self.version} {self.path}"


def find_torchgen(torch_folder: Path | None = None) -> Path:
    """The `native_functions.yaml` of the installed torch, or of the torch in `torch_folder`.

    Without a torch, the table that joymigrate brings along.
    `torch_folder` is a site-packages folder or a torchgen folder.
    """
    if torch_folder is not None:
        for found in (torch_folder / "torchgen" / FILE, torch_folder / FILE):
            if found.is_file():
                return found
        raise JoyError("no torchgen here", where=str(torch_folder), help="name site-packages")
    spec = importlib.util.find_spec("torchgen")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / FILE).is_file():
            return Path(place) / FILE
    return shipped_path()


def shipped_path() -> Path:
    """The table that joymigrate brings along, of the torch it was tested with."""
    return rules_root() / "common" / "ops" / "torch_operators.txt"


@functools.cache
def read_table(path: Path | None = None) -> AtenTable:
    """The operators of the installed torch, or of the file at `path`."""
    file = path or find_torchgen()
    text = file.read_text(encoding="utf-8")
    said = STAMP.match(text)
    if said:
        return parse(text, said[1], "native_functions.yaml, as joymigrate brings it along")
    return parse(text, version_beside(file), file.name)


def version_beside(path: Path) -> str:
    """The torch version in whose site-packages this torchgen lies; empty where there is none."""
    folder = path.parents[4] / "torch" / "version.py" if len(path.parents) > 4 else None
    if folder is None or not folder.is_file():
        return ""
    match = re.search(r"__version__ = '([^']+)'", folder.read_text(encoding="utf-8"))
    return match[1].partition("+")[0] if match else ""


def parse(text: str, version: str, name: str) -> AtenTable:
    """All overloads of a `native_functions.yaml`, with the ones that torch generates."""
    ops: dict[str, AtenOp] = {}
    made: dict[str, AtenOp] = {}
    for op, generated in blocks(text):
        ops[op.name] = op
        for other in generated:
            made[other] = AtenOp(
                other, op.arguments, frozenset(EXPLICIT[:1]), "explicit", None, True
            )
    if not ops:
        raise JoyError("no operators in this file", where=name, help="is it native_functions.yaml?")
    ops = {**made, **ops}
    bases: dict[str, list[str]] = {}
    for full in ops:
        bases.setdefault(full.partition(".")[0], []).append(full)
    return AtenTable(version, name, ops, {base: tuple(all) for base, all in bases.items()})


def blocks(text: str) -> Iterator[tuple[AtenOp, list[str]]]:
    """Every operator with the names that torch generates from it."""
    head: re.Match[str] | None = None
    fields: dict[str, str] = {}
    keys: dict[str, str] | None = None
    for raw in text.splitlines():
        line = raw.split(" #")[0].rstrip() if "#" in raw else raw.rstrip()
        if line.startswith("- func:"):
            if head:
                yield operator(head, fields, keys)
            head, fields, keys = FUNCTION.match(line), {}, None
        elif match := KEY.fullmatch(line):
            fields[match["key"]] = match["value"]
            if match["key"] == "dispatch":
                keys = {}
        elif keys is not None and (match := INNER.fullmatch(line)):
            keys |= {key.strip(): match["value"] for key in match["keys"].split(",")}
    if head:
        yield operator(head, fields, keys)


def operator(
    head: re.Match[str], fields: Mapping[str, str], dispatch: Mapping[str, str] | None
) -> tuple[AtenOp, list[str]]:
    """One operator from its lines.

    Without `dispatch:` an operator is made of others; with an empty one (`dispatch: {}`) nothing
    is registered for it at all.
    """
    delegate = fields.get("structured_delegate") or None
    keys = frozenset(dispatch or ())
    if keys & set(EXPLICIT):
        composite = "explicit"
    elif IMPLICIT in keys or (dispatch is None and delegate is None):
        composite = "implicit"
    else:
        composite = ""
    generated = [name.strip() for name in fields.get("autogen", "").split(",") if name.strip()]
    return (
        AtenOp(
            name=head["name"],
            arguments=arguments(head["arguments"]),
            keys=keys,
            composite=composite,
            delegate=delegate,
            schema=head["arguments"],
        ),
        generated,
    )


def arguments(text: str) -> tuple[SchemaParameter, ...]:
    """The parameters of a schema, without those after `*` that are written to (`out`)."""
    found = []
    for part in split_arguments(text):
        if part == "*" or not part:
            continue
        kind, _, rest = part.partition(" ")
        name = rest.partition("=")[0].strip()
        found.append(SchemaParameter(name, kind_of(kind)))
    return tuple(found)


def kind_of(kind: str) -> str:
    """tensor, tensors, or value, from a schema's type."""
    if not kind.startswith("Tensor"):
        return "value"
    bare = re.sub(r"\([^)]*\)", "", kind)
    return "tensors" if "[" in bare else "tensor"


def split_arguments(text: str) -> list[str]:
    """Split at commas outside brackets."""
    found, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == "," and depth == 0:
            found.append(text[start:index].strip())
            start = index + 1
    return [*found, text[start:].strip()]
