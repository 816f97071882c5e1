"""What kernels take that are generated at build time, read from their operators' definitions.

Such a kernel (`aclnnForeachAddList`, `aclnnRmsNorm`) has no host code of its own: the vendor's
generator makes it from the operator's definition, which lists the dtypes of each input and output
per model. A list that the code works out is not known; a model that it does not name is left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from joymigrate.chips.answers import TensorAnswer
from joymigrate.run.rehearse.host_checks.ask import NUMBERS
from joymigrate.run.rehearse.host_checks.checkouts import Checkouts
from joymigrate.run.rehearse.host_checks.declarations import COMMENT
from joymigrate.run.rehearse.host_checks.recipe import LEFT_OUT
from joymigrate.run.rehearse.host_checks.refusals import dtypes_of

ADDED = re.compile(r"\bOP_ADD\(\s*(\w+)")
CONFIG = re.compile(r"\.AddConfig\(\s*(?P<model>[^,)]+)(?:,\s*(?P<config>\w+))?[^)]*\)")
# `this->Input("x")…;` or `config.Input("x")…;`: one tensor with its chain of calls.
TENSOR = re.compile(
    r'(?P<owner>\w+)\s*(?:->|\.)\s*(?P<role>Input|Output)\(\s*"(?P<name>\w+)"\s*\)(?P<chain>[^;]*);'
)
DTYPES = re.compile(r"\.DataType(?P<every>List)?\(\s*(?P<inside>\{[^{}]*\}|\w+)\s*\)")
LIST = re.compile(r"\b(?P<name>\w+)\s*(?:=\s*)?\{(?P<inside>[^{}]*\bDT_[^{}]*)\}")
MODELS = {
    "ascend910b": "910B", "ascend910_93": "910_93", "ascend310b": "310B", "ascend310p": "310P",
    "ascend910": "910",
}  # fmt: skip
BASE = "this"  # owner of the tensors that hold where a model has none of its own


@dataclass(frozen=True, slots=True)
class DefinedTensor:
    """One tensor of a definition; `dtypes` is empty where the code works them out."""

    name: str
    role: str  # in, out
    optional: bool
    dtypes: frozenset[str]


def read_definitions(checkouts: Checkouts, wanted: Collection[str]) -> list[TensorAnswer]:
    """Rows of the table of answers for the kernels in `wanted` that are generated."""
    rows = []
    for repository in checkouts.operators:
        folder = checkouts.root / repository
        source = f"definition of {repository} {checkouts.versions[repository]}"
        for path in sorted(folder.rglob("*_def.cpp")):
            if LEFT_OUT.search("/" + path.relative_to(folder).as_posix()):
                continue
            text = COMMENT.sub(" ", path.read_text(encoding="utf-8", errors="replace"))
            added = ADDED.findall(text)
            if len(added) == 1 and f"aclnn{added[0]}" in wanted:  # several are not told apart
                rows += rows_of(f"aclnn{added[0]}", text, source)
    return sorted(rows, key=lambda row: row.kernel)


def rows_of(kernel: str, text: str, source: str) -> list[TensorAnswer]:
    """The rows of one definition; models with the same lists share them."""
    by_model = tensors_of(text)
    groups: dict[tuple[DefinedTensor, ...], list[str]] = {}
    for model, tensors in by_model.items():
        groups.setdefault(tensors, []).append(model)
    return [
        TensorAnswer(
            kernel, one.name, one.role, "yes" if one.optional else "no", frozenset(models),
            one.dtypes, frozenset(NUMBERS) - one.dtypes if one.dtypes else frozenset(), 0, source,
        )
        for tensors, models in groups.items()
        if any(one.dtypes for one in tensors)
        for one in tensors
    ]  # fmt: skip


def tensors_of(text: str) -> dict[str, tuple[DefinedTensor, ...]]:
    """The tensors of a definition by model, results behind inputs. Empty where the models are not
    written out."""
    lists = {match["name"]: match["inside"] for match in LIST.finditer(text)}
    owners: dict[str, dict[str, DefinedTensor]] = {}
    for owner, tensor in written_tensors(text, lists):
        before = owners.setdefault(owner, {}).get(tensor.name)
        if before is not None:  # twice: a branch of the code decides
            tensor = replace(tensor, dtypes=frozenset())
        owners[owner][tensor.name] = tensor
    base = owners.pop(BASE, {})
    found: dict[str, tuple[DefinedTensor, ...]] = {}
    for match in CONFIG.finditer(text):
        model = match["model"].strip()
        if not model.startswith('"'):
            return {}
        if model.strip('"') not in MODELS:
            continue
        config = match["config"]
        if config and config not in owners and text.count(f"{config} =") and owners:
            return {}  # a function makes it
        own = {**base, **(owners.get(config, {}) if config else {})}
        inputs = [one for one in own.values() if one.role == "in"]
        found[MODELS[model.strip('"')]] = (*inputs, *(o for o in own.values() if o.role == "out"))
    return found


def written_tensors(text: str, lists: Mapping[str, str]) -> Iterator[tuple[str, DefinedTensor]]:
    """Every tensor that a definition writes down, with the name of what it belongs to. Numbers
    (`.Scalar()`) are no tensors."""
    for match in TENSOR.finditer(text):
        chain = match["chain"]
        if re.search(r"\.Scalar(List)?\(", chain):
            continue
        stated = DTYPES.search(chain)
        inside = "" if stated is None else stated["inside"]
        words = inside if inside.startswith("{") else lists.get(inside, "")
        role = "in" if match["role"] == "Input" else "out"
        yield (
            match["owner"],
            DefinedTensor(match["name"], role, "OPTIONAL" in chain, frozenset(dtypes_of(words))),
        )
