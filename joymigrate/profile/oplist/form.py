"""The form of `ops/operators.yaml`: what stands in a list beside its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joymigrate.errors import JoyError
from joymigrate.schema import document, setting


@dataclass(frozen=True, slots=True)
class Package:
    """Where the chip's installed torch package, or its wheel, keeps its list."""

    distribution: str = setting(help="what is installed")
    list: str = setting(help="path of the list inside site-packages or the wheel")
    version: str = setting("", "path of a version.py")

    def __post_init__(self) -> None:
        if not self.distribution or not self.list:
            raise JoyError("needs `distribution` and `list`")


@dataclass(frozen=True, slots=True)
class ReleaseFields:
    """Where one version of a list was read."""

    source: str = setting("", "the document or package")
    commit: str = setting("", "of the source", words=True)
    date: str = setting("", "of the source", words=True)


@dataclass(frozen=True, slots=True)
class OperatorFields:
    """What is known of one operator beside its name."""

    status: str = setting("", "native where empty")
    dtypes: str | tuple[str, ...] = setting((), "torch's names, in a list or with spaces")
    kernels: str | tuple[str, ...] = setting((), "names of the chip's kernels")
    contiguous: str | tuple[str, ...] = setting((), "parameters that must be contiguous")
    note: str = setting("", "what else is known")
    alternative: str = setting("", "what to call instead")
    alt: str = setting("", "short for alternative")
    versions: str = setting("", "a range such as `2.6-`; empty for all", words=True)


@dataclass(frozen=True, slots=True)
class ListMeta:
    """About a whole list."""

    chip: str = setting("", "the chip's name")
    torch: str = setting("", "the one version, where `versions` is absent", words=True)
    source: str = setting("", "where the list was read")
    commit: str = setting("", "of the source", words=True)
    date: str = setting("", "of the source", words=True)
    fallback: str | None = setting(
        None, "what an operator without a kernel does", choices=("cpu", "error")
    )
    env: Mapping[str, str] = setting(make=dict, help="variables that change the fallback")
    note: str = setting("", "what else is known")


@document("operators", "A chip's own operators: `ops/operators.yaml` of its folder, or `--ops`.")
@dataclass(frozen=True, slots=True)
class OperatorsFile:
    """A list with everything in it, or with tables beside it."""

    meta: ListMeta = setting(make=ListMeta, help="about the list")
    versions: Mapping[str, ReleaseFields] = setting(make=dict, help="where each version was read")
    default: str | None = setting(None, "the version where none is named", words=True)
    namespaces: tuple[str, ...] = setting((), "the chip's own, beside aten")
    ops: Mapping[str, OperatorFields | None] | tuple[str, ...] | None = setting(
        None, "operators by name, or a list of names"
    )
    table: str | None = setting(None, "a CSV of operators beside the file")
    kernels: str | None = setting(None, "a CSV of dtypes by kernel and tensor")
    answers: str | None = setting(None, "a CSV of what the chip's host code answered, per model")
    model: str = setting("", "the model whose answers count for the list", words=True)
    aliases: str | None = setting(None, "other names of operators")
    reports: str | None = setting(None, "what users of the chip reported, beside the list")
    package: Package | None = setting(None, "where the installed package keeps its list")

    def __post_init__(self) -> None:
        if self.ops is None and self.table is None:
            raise JoyError("needs `ops` or `table`")
        if self.ops is not None and not self.ops:
            raise JoyError("`ops` names no operator", where="ops")
