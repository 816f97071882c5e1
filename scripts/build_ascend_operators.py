"""Build `rules/ascend/ops/operators.csv` and `kernel_parameters.csv` from the vendor's sources.

    python -m scripts.build_ascend_operators --wheels DIR --op-plugin GIT_DIR --kernels CSV

`--wheels` holds torch-npu wheels, one of each release (`pip download --no-deps torch-npu==V`),
`--op-plugin` is a clone of Ascend/op-plugin (kernel names, replacements of deprecated operators,
and the versions that have no wheel yet), `--kernels` a table of kernel inputs read from the
documents of hicann/ops-* (columns aclnn, param, io, dtypes, noncontiguous). Facts only are kept:
names, versions, dtypes. With `--wheels` alone the releases are read anew, and kernels, replacements
and versions without a wheel stay what the present table says.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from joymigrate.data import rules_root
from joymigrate.profile.oplist import package
from joymigrate.profile.oplist.build import build
from joymigrate.profile.oplist.entries import (
    Entries,
    ListRelease,
    OplistEntry,
    Package,
    read,
    read_csv,
)
from joymigrate.profile.oplist.package import Shipped
from joymigrate.run.rehearse.constraints import read_arguments

PLUGIN = "op_plugin/config/op_plugin_functions.yaml"
DEPRECATED = "op_plugin/config/deprecated.yaml"
SOURCES = "op_plugin/ops/opapi"
KERNEL = re.compile(r"\baclnn\w+\b")
WORD = re.compile(r"\b([a-z_]\w*)\s*\(")
HEAD = re.compile(r"([A-Za-z_]\w*)\s*\(")
# The kernel documents' names of dtypes.
DTYPES = {
    "FLOAT16": "float16", "BFLOAT16": "bfloat16", "BF16": "bfloat16", "FLOAT": "float32",
    "FLOAT32": "float32", "DOUBLE": "float64", "FLOAT64": "float64", "BOOL": "bool",
    "COMPLEX32": "complex32", "COMPLEX64": "complex64", "COMPLEX128": "complex128",
    **{f"INT{n}": f"int{n}" for n in (4, 8, 16, 32, 64)},
    **{f"UINT{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    "FLOAT8_E4M3FN": "float8_e4m3fn", "FLOAT8_E5M2": "float8_e5m2", "HIFLOAT8": "hifloat8",
}  # fmt: skip
WRITTEN = re.compile(r"[A-Z][A-Z0-9_]*")
# Dtypes said by way of another parameter's: the same as, derived from, see.
SAME = re.compile("一致|相同|同|推导|参考|满足|关系|取值")
# Parameters that a call may leave out though their row does not say so.
MAY_LACK = (
    *("bias", "weight", "gradInput", "gradWeight", "gradBias", "offset", "mask", "antiquantScale"),
    *("antiquantOffset", "quantScale", "quantOffset", "scale", "alpha", "workspace"),
)
PLAIN = re.compile(r"_|optional$|out$")  # what a document's name and a prototype's differ in
COLUMNS = ("kernel", "parameter", "role", "dtypes", "part", "optional", "contiguous", "source")
REFUSES = ("×", "x", "不支持")  # what the documents say where an input has to be contiguous


def main() -> None:
    """Read all sources and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--op-plugin", type=Path)
    parser.add_argument("--kernels", type=Path)
    arguments = parser.parse_args()
    folder = rules_root() / "ascend" / "ops"
    where = Package(
        "torch-npu",
        "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml",
        "torch_npu/version.py",
    )
    shipped = [package.read_wheel(path, where) for path in sorted(arguments.wheels.glob("*.whl"))]
    if arguments.op_plugin is None or arguments.kernels is None:
        table = tuple(read_csv(folder / "operators.csv"))
        before = replace(read(folder / "operators.yaml"), entries=table)
        lost = (v for v in before.releases if v not in {one.release.version for one in shipped})
        shipped += [known(before, version) for version in lost if version.count(".") == 1]
        built = build(shipped, "npu", kept(before))
        (folder / "operators.csv").write_text(built.table(), encoding="utf-8")
        print(f"{built.versions()}{len(built.rows)} rows")
        return
    shipped.append(from_plugin(arguments.op_plugin, "2.15", newest(shipped)))
    built = build(shipped, "npu", extras(arguments.op_plugin, shipped))
    (folder / "operators.csv").write_text(built.table(), encoding="utf-8")
    print(built.versions())
    with (folder / "kernel_parameters.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(kernel_parameters(arguments.kernels))
    read.cache_clear()
    print(f"{len(built.rows)} rows")


def known(before: Entries, version: str) -> Shipped:
    """A version without a wheel, as the present table has it."""
    names: dict[str, str] = {}
    custom: dict[str, str] = {}
    for entry in before.of(version):
        space, _, base = entry.name.partition("::")
        name = f"{base}.{entry.overload}" if entry.overload else base
        note = entry.note.partition("; ")[0]
        (names if space == "aten" else custom)[name] = note if note in NOTES else ""
    return Shipped(before.releases[version], names, custom)


def kept(before: Entries) -> list[OplistEntry]:
    """Kernels, replacements and notes of the present table, without what wheels say themselves."""
    found = []
    for entry in before.entries:
        notes = [part for part in entry.note.split("; ") if part and part not in NOTES]
        found.append(replace(entry, note="; ".join(notes)))
    # A row that has kernels says more than one of another status.
    return sorted(found, key=lambda entry: (bool(entry.kernels), bool(entry.note)))


NOTES = ("compiled per shape (acl_op only)", package.QUANTISED, package.SPARSE)


def newest(shipped: Iterable[Shipped]) -> Shipped:
    """The release with the highest version."""
    return max(shipped, key=lambda s: tuple(int(n) for n in s.release.version.split(".")))


def show(repository: Path, path: str) -> str:
    """A file of a clone's HEAD."""
    command = ["git", "-C", str(repository), "show", f"HEAD:{path}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def from_plugin(repository: Path, version: str, before: Shipped) -> Shipped:
    """A version without a wheel: what op-plugin generates for it, and the hand-written rest of
    the newest wheel (what that one has and op-plugin does not generate for its version)."""
    document = yaml.safe_load(show(repository, PLUGIN))
    listed = [f"v{one}" for one in (before.release.version, version)]
    then, now = (generated(document, one) for one in listed)
    names = {n: t for n, t in before.names.items() if n not in then[0]} | now[0]
    custom = {n: t for n, t in before.custom.items() if n not in then[1]} | now[1]
    head = ["git", "-C", str(repository), "log", "-1", "--format=%h %cs"]
    commit, date = subprocess.run(head, check=True, capture_output=True, text=True).stdout.split()
    source = f"Ascend/op-plugin {PLUGIN}, with the hand-written kernels of {before.release.version}"
    return Shipped(ListRelease(version, source, commit, date), names, custom)


def generated(document: Mapping[str, Any], version: str) -> tuple[dict[str, str], dict[str, str]]:
    """What op-plugin generates for one version: torch's operators, and its own."""
    order = document["all_version"]
    dense: dict[str, str] = {}
    own: dict[str, str] = {}
    for section in ("official", "symint", "autograd", "quant", "custom"):
        for item in document.get(section) or ():
            kinds = [k for k in ("acl_op", "op_api", "sparse") if has(item.get(k), version, order)]
            if not kinds:
                continue
            name = item["func"].partition("(")[0]
            note = package.QUANTISED if section == "quant" else ""
            note = package.SPARSE if kinds == ["sparse"] else note
            note = "compiled per shape (acl_op only)" if kinds == ["acl_op"] and not note else note
            (own if section == "custom" else dense)[name] = note
    return dense, own


def has(span: Any, version: str, order: list[str]) -> bool:
    """Whether `all_version`, `v2.1, v2.2` or `[v2.1, newest]` includes a version."""
    if not span:
        return False
    if span == "all_version":
        return True
    if isinstance(span, list):
        first, last = span
        last = order[-1] if last == "newest" else last
        return order.index(first) <= order.index(version) <= order.index(last)
    return version in [one.strip() for one in str(span).split(",")]


def extras(repository: Path, shipped: Iterable[Shipped]) -> list[OplistEntry]:
    """Kernel names and replacements by operator."""
    replaced = {
        item["name"]: item.get("replace") or ""
        for item in yaml.safe_load(show(repository, DEPRECATED))["deprecated"]
    }
    plugin = yaml.safe_load(show(repository, PLUGIN))
    exact = {}
    for section in ("official", "symint", "custom"):
        for item in plugin.get(section) or ():
            found = KERNEL.findall(str((item.get("gen_opapi") or {}).get("exec", "")))
            if found:
                exact[item["func"].partition("(")[0]] = tuple(found[:1])
    called = kernels_of_functions(repository)
    names: dict[str, str] = {}
    for one in shipped:
        names |= {**dict.fromkeys(one.names, "aten"), **dict.fromkeys(one.custom, "npu")}
    entries = []
    for name, namespace in names.items():
        base, _, overload = name.partition(".")
        written = f"{base}_out" if overload.endswith(("out", "grad_input")) else base
        kernels = exact.get(name) or called.get(written) or called.get(f"{base}_symint")
        kernels = kernels or relative(base, overload, exact, called)
        entry = OplistEntry(f"{namespace}::{base}", overload, kernels=tuple(kernels))
        if name in replaced:
            to = replaced[name]
            entry = replace(entry, note="deprecated", alternative=str(to or ""))
        if entry.kernels or entry.note:
            entries.append(entry)
    return entries


def relative(
    base: str,
    overload: str,
    exact: Mapping[str, tuple[str, ...]],
    called: Mapping[str, tuple[str, ...]],
) -> tuple[str, ...]:
    """Kernels of an operator that is generated from its out variant."""
    plain = base.removesuffix("_")
    for name in (f"{plain}.{overload}_out", f"{plain}.out", f"{plain}.grad_input", plain):
        if name in exact:
            return exact[name]
    for name in (f"{plain}_out", plain):
        if name in called:
            return called[name]
    return ()


def kernels_of_functions(repository: Path) -> dict[str, tuple[str, ...]]:
    """Kernels that each C++ function runs, itself or through functions of the same file."""
    command = ["git", "-C", str(repository), "ls-tree", "-r", "--name-only", "HEAD", SOURCES]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, list[str]] = {}
    for path in listing.split():
        if not path.endswith(".cpp"):
            continue
        bodies = functions(show(repository, path))
        for name in bodies:
            for kernel in reached(name, bodies, set()):
                if kernel not in found.setdefault(name, []):
                    found[name].append(kernel)
    return {name: tuple(kernels) for name, kernels in found.items() if kernels}


def functions(text: str) -> dict[str, str]:
    """Bodies of the functions of a C++ file by name; overloads are put together."""
    text = re.sub(r"//[^\n]*|(?m:^namespace[^{\n]*\{)|(?m:^#.*$)", "", text)
    found: dict[str, str] = {}
    for match in re.finditer(r"(?ms)^(?P<head>[A-Za-z][^;{}]*?)\n?\{\n?(?P<body>.*?)^\}", text):
        head = match["head"]
        name = HEAD.search(head)
        if name is None or head.startswith(("namespace", "struct", "enum", "class")):
            continue
        found[name[1]] = found.get(name[1], "") + match["body"]
    return found


def reached(name: str, bodies: Mapping[str, str], seen: set[str]) -> list[str]:
    """Kernels that a function names, and those of the functions that it calls."""
    if name in seen or name not in bodies:
        return []
    seen.add(name)
    body = bodies[name]
    kernels = list(dict.fromkeys(KERNEL.findall(body)))
    for called in dict.fromkeys(WORD.findall(body)):
        kernels += [k for k in reached(called, bodies, seen) if k not in kernels]
    return kernels


def kernel_parameters(path: Path) -> Iterable[tuple[str, ...]]:
    """Every tensor of each kernel in the order of its arguments, as COLUMNS names them. `part`
    where the document says some of its dtypes in another way (same as …)."""
    prototypes = read_arguments(rules_root() / "ascend" / "kernels" / "arguments.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
        places: dict[str, int] = {}
        for row in rows:
            place = places[row["aclnn"]] = places.get(row["aclnn"], -1) + 1
            tensors = [name for name, kind in prototypes.get(row["aclnn"], ()) if kind in "TL"]
            name, text = declared_name(row["param"], place, tensors), row["dtypes"]
            words = WRITTEN.findall(text)
            plain = words and all(word in DTYPES for word in words) and not SAME.search(text)
            dtypes = " ".join(dict.fromkeys(dtypes_of(text)))
            part = "" if plain or not dtypes else "yes"
            strict = "yes" if row["noncontiguous"] in REFUSES else ""
            optional = "可选" in row["io"] or name.endswith("Optional") or name in MAY_LACK
            written = "out" if "输入" not in row["io"] else "in"
            left_out = "yes" if optional else "no"
            yield row["aclnn"], name, written, dtypes, part, left_out, strict, row["source"]


def declared_name(name: str, place: int, tensors: Sequence[str]) -> str:
    """A tensor's name in its kernel's prototype: the same, one that differs in a suffix, or that of
    its place. The documents write some otherwise."""
    plain = {PLAIN.sub("", one.lower()): one for one in tensors}
    if not tensors or name in tensors:
        return name
    return plain.get(PLAIN.sub("", name.lower())) or (
        tensors[place] if place < len(tensors) else name
    )


def dtypes_of(text: str) -> list[str]:
    """torch's names of what a document lists; those it writes in another way are left out."""
    return [DTYPES[word] for word in WRITTEN.findall(text) if word in DTYPES]


if __name__ == "__main__":
    main()
