"""`cluster validate`: strict schemas of custom and core kinds, and the webhooks' rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.cluster.kubernetes import strict, webhooks
from joymigrate.run.cluster.kubernetes.strict import ManifestProblem

SCHEMAS = Path(__file__).parent / "schemas"
SHARED = "shared.json"  # parts that stand in several definitions, such as a pod's template
CORE_VERSION = "1.30"
LONGEST_NAME = 253
# Names are DNS subdomains (RFC 1123); roles and bindings may also have colons.
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
RBAC = "rbac.authorization.k8s.io"
META = {  # the part of ObjectMeta that manifests may set
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in (
            "name", "generateName", "namespace", "uid", "resourceVersion", "creationTimestamp",
            "selfLink", "deletionTimestamp",
        )},
        **{name: {"type": "object", "additionalProperties": {"type": "string"}} for name in (
            "labels", "annotations",
        )},
        **{name: {"type": "integer"} for name in ("generation", "deletionGracePeriodSeconds")},
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "ownerReferences": {"type": "array", "items": {"type": "object"}},
        "managedFields": {"type": "array", "items": {"type": "object"}},
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ManifestObject:
    """One object of a file."""

    where: str
    data: Mapping[str, Any]

    @property
    def group(self) -> str:
        """API group, empty for the core."""
        return str(self.data.get("apiVersion", "")).rpartition("/")[0]

    @property
    def version(self) -> str:
        """API version without its group."""
        return str(self.data.get("apiVersion", "")).rpartition("/")[2]

    @property
    def kind(self) -> str:
        """Its kind."""
        return str(self.data.get("kind", ""))


@dataclass(frozen=True, slots=True)
class ManifestCheck:
    """What was found in how many objects, and what could not be checked."""

    objects: int
    problems: tuple[ManifestProblem, ...]
    notes: tuple[str, ...] = ()


Schemas = dict[tuple[str, str], dict[str, Any]]  # (group, kind) → version → schema


def validate(paths: Sequence[Path], crd_dir: Path | None = None) -> ManifestCheck:
    """Check all objects of all files, together."""
    documents = [document for path in paths for document in read(path)]
    return check(documents, schemas(crd_dir))


def check(documents: Sequence[ManifestObject], known: Schemas) -> ManifestCheck:
    """Check parsed objects."""
    problems: list[ManifestProblem] = []
    notes: list[str] = []
    mistyped: set[str] = set()
    for document in documents:
        found = [*schema_problems(document, known, notes), *name_problems(document)]
        if any(problem.help.startswith(strict.MISTYPED) for problem in found):
            mistyped.add(document.where)  # rules about its numbers would only say so again
        problems += found
    for key, rule in webhooks.RULES.items():
        mine = [
            doc for doc in documents if (doc.group, doc.kind) == key and doc.where not in mistyped
        ]
        for number, path, what, remedy in rule([doc.data for doc in mine]):
            problems.append(ManifestProblem(mine[number].where, path, what, remedy))
    return ManifestCheck(
        len(documents), tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(notes))
    )


def schema_problems(
    document: ManifestObject, known: Schemas, notes: list[str]
) -> list[ManifestProblem]:
    """One object against its schema."""
    if not document.data.get("apiVersion") or not document.kind:
        return [ManifestProblem(document.where, "", "no apiVersion or kind", "add both")]
    versions = known.get((document.group, document.kind))
    if versions is not None:
        if document.version not in versions:
            what = f"is {document.data['apiVersion']!r}"
            served = ", ".join(f"{document.group}/{version}" for version in versions)
            return [ManifestProblem(document.where, "apiVersion", what, f"one of {served}")]
        schema = versions[document.version]
        inside = {**(schema.get("properties") or {}), "metadata": META}
        whole = {**schema, "properties": inside}
        return [
            ManifestProblem(document.where, *found) for found in strict.check(document.data, whole)
        ]
    kinds = [kind for group, kind in known if group == document.group]
    if kinds:
        hint = did_you_mean(document.kind, kinds).strip()
        what = f"{document.group} has no kind '{document.kind}'"
        return [ManifestProblem(document.where, "kind", what, hint or f"one of {', '.join(kinds)}")]
    return core_problems(document, notes)


def name_problems(document: ManifestObject) -> list[ManifestProblem]:
    """The name, which every object needs and the API server checks."""
    metadata = document.data.get("metadata")
    if not document.kind or (metadata is not None and not isinstance(metadata, Mapping)):
        return []  # the schema says so
    name = (metadata or {}).get("name")
    if not name:
        if (metadata or {}).get("generateName"):
            return []
        return [ManifestProblem(document.where, "metadata.name", "is missing", "give it a name")]
    text = str(name)
    if document.group == RBAC or (SUBDOMAIN.fullmatch(text) and len(text) <= LONGEST_NAME):
        return []
    remedy = "lowercase letters, digits, '-' and '.', a letter or digit at both ends, at most 253"
    return [ManifestProblem(document.where, "metadata.name", f"is {text!r}", remedy)]


def core_problems(document: ManifestObject, notes: list[str]) -> list[ManifestProblem]:
    """A core kind, with the library that carries Kubernetes' own schemas."""
    try:
        import kubernetes_validate
    except ImportError:
        notes.append(
            f"{document.kind}: core kinds are not checked without kubernetes-validate "
            "(pip install 'joymigrate[cluster]')"
        )
        return []
    try:
        kubernetes_validate.validate(dict(document.data), CORE_VERSION, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        what = f"nothing is known about {document.data['apiVersion']} {document.kind}"
        return [ManifestProblem(document.where, "kind", what, "give its definition with --crd-dir")]
    except kubernetes_validate.ValidationError as error:
        path = ".".join(str(part) for part in error.path)
        return [
            ManifestProblem(
                document.where, path, str(error.message), "see the reference of the kind"
            )
        ]
    return []


def read(path: Path) -> Iterable[ManifestObject]:
    """Objects of a YAML or JSON file, lists of objects unrolled; empty documents are skipped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise JoyError(
            f"cannot read: {why}", where=str(path), help="name a YAML or JSON file of objects"
        ) from error
    try:
        raw = list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise JoyError(
            f"not valid YAML: {getattr(error, 'problem', error)}", where=f"{path}{line}"
        ) from error
    return documents_of(raw, str(path))


def documents_of(raw: Iterable[Any], path: str) -> list[ManifestObject]:
    """Documents with a name for messages: file, kind/name."""
    found: list[ManifestObject] = []
    for item in raw:
        if item is None:
            continue
        if not isinstance(item, dict):
            raise JoyError(f"a manifest is an object, not {type(item).__name__}", where=path)
        if item.get("kind") == "List":
            found += documents_of(item.get("items") or (), path)
            continue
        name = webhooks.name_of(item)
        found.append(ManifestObject(f"{path}: {item.get('kind', '?')}/{name or '?'}", item))
    return found


def schemas(crd_dir: Path | None = None) -> Schemas:
    """Our schemas, or those of the definitions in a folder, which then replace ours by group."""
    found: Schemas = {}
    shared = json.loads((SCHEMAS / SHARED).read_text(encoding="utf-8"))
    for path in sorted(SCHEMAS.glob("*.json")):
        if path.name != SHARED:
            raw = json.loads(path.read_text(encoding="utf-8"))
            found[raw["group"], raw["kind"]] = unfold(raw["versions"], shared)
    if crd_dir is not None:
        own = read_definitions(crd_dir)
        groups = {group for group, _ in own}
        found = {key: value for key, value in found.items() if key[0] not in groups} | own
    return found


def unfold(part: Any, shared: dict[str, Any]) -> Any:
    """A schema with each `{"$ref": key}` replaced by the one object that it names in `shared`."""
    if isinstance(part, list):
        return [unfold(item, shared) for item in part]
    if not isinstance(part, dict):
        return part
    if [*part] == ["$ref"]:
        key = part["$ref"]
        if not isinstance(shared[key], Unfolded):
            shared[key] = Unfolded(unfold(shared[key], shared))
        return shared[key]
    return {name: unfold(item, shared) for name, item in part.items()}


class Unfolded(dict[str, Any]):
    """A shared part that needs no look again."""


def read_definitions(folder: Path) -> Schemas:
    """Schemas of all CustomResourceDefinitions in a folder (`kubectl get crd -o yaml`)."""
    if not folder.is_dir():
        raise JoyError("no folder of definitions", where=str(folder))
    found: Schemas = {}
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml"), *folder.glob("*.json")]):
        for document in read(path):
            spec = document.data.get("spec") or {}
            if document.kind == "CustomResourceDefinition":
                found[spec["group"], spec["names"]["kind"]] = {
                    version["name"]: (version.get("schema") or {}).get("openAPIV3Schema") or {}
                    for version in spec.get("versions") or ()
                }
    if not found:
        raise JoyError("no CustomResourceDefinition in this folder", where=str(folder))
    return found
