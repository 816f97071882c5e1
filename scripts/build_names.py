"""Build `rules/<chip>/names.txt` from the sources of the chip's torch package.

    python -m scripts.build_names CHIP --wheels DIR --repository GIT_DIR --installed SITE_PACKAGES

`rules/<chip>/names.yaml` says which modules are read and where each version comes from: a wheel
(`pip download --no-deps NAME==VERSION`), a revision of a git repository, or the installed package.
Nothing is imported; see `joymigrate/chips/extract.py` for what that can't see.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from joymigrate.chips.extract import Extractor, Revision, SourceTree, Tree, Wheel
from joymigrate.chips.names import span_of, version_key
from joymigrate.data import rules_root
from joymigrate.schema import read_yaml


def main() -> None:
    """Read every version of one chip and write its list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chip", help="folder below rules/")
    parser.add_argument("--wheels", type=Path, help="folder with downloaded wheels")
    parser.add_argument("--repository", type=Path, help="git repository of the package")
    installed = Path(sysconfig.get_paths()["purelib"])
    parser.add_argument("--installed", type=Path, default=installed)
    arguments = parser.parse_args()
    folder = rules_root() / arguments.chip
    recipe = read_yaml(folder / "names.yaml")
    trees: dict[str, Tree] = {}
    sources: dict[str, str] = {}
    for version, place in recipe["versions"].items():
        trees[str(version)], sources[str(version)] = open_tree(place, arguments)
    text = render(arguments.chip, recipe, trees, sources)
    (folder / "names.txt").write_text(text, encoding="utf-8")
    print(f"{folder / 'names.txt'}: {len(text.splitlines())} lines, {len(trees)} versions")


def open_tree(place: Mapping[str, str], arguments: argparse.Namespace) -> tuple[Tree, str]:
    """The tree that one version is read from, with a line that says what it was."""
    today = datetime.date.today().isoformat()
    if "wheel" in place:
        name, _, version = place["wheel"].partition("==")
        pattern = f"{name.replace('-', '_')}-{version}-*.whl"
        found = sorted(arguments.wheels.glob(pattern)) if arguments.wheels else []
        if not found:
            raise SystemExit(f"no {pattern} in {arguments.wheels}: pip download --no-deps {name}")
        archive = zipfile.ZipFile(found[0])
        return Wheel(archive), f"{name} {version} wheel {commit_of(archive)}read {today}"
    if "revision" in place:
        revision = place["revision"]
        shown = subprocess.run(
            ["git", "-C", arguments.repository, "log", "-1", "--format=%h %ad", "--date=short",
             revision],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        tree = Revision(arguments.repository, revision)
        return tree, f"{place['repository']} {revision} {shown} read {today}"
    package = place["installed"]
    return SourceTree(arguments.installed), f"{package} installed read {today}"


def commit_of(archive: zipfile.ZipFile) -> str:
    """`commit abc123 ` from a wheel's version.py, or nothing."""
    for name in archive.namelist():
        if re.fullmatch(r"\w+/version\.py", name):
            found = re.search(r"git_version = '([0-9a-f]{12})", archive.read(name).decode())
            return f"commit {found[1]} " if found else ""
    return ""


def render(
    chip: str, recipe: Mapping[str, Any], trees: Mapping[str, Tree], sources: Mapping[str, str]
) -> str:
    """The text of the list."""
    versions = sorted(trees, key=version_key)
    lines = [
        f"# Names of the torch package, by version. Made by: python -m scripts.build_names {chip}",
        "# Read from source, nothing imported. A name without a range exists in every version.",
        *(f"version {version} {sources[version]}" for version in versions),
    ]
    for section in recipe["sections"]:
        found = {v: names_of(section, trees[v]) for v in versions}
        known = [v for v in versions if found[v]]
        if not known:
            raise SystemExit(f"{section['module']}: no names found in any version")
        span = span_of(known, versions)
        lines += ["", f"[{section['module']}] {span}".rstrip()]
        for name in sorted(set().union(*found.values())):
            present = [v for v in known if name in found[v]]
            lines.append(
                f"{name} {span_of(present, versions) if present != known else ''}".rstrip()
            )
    return "\n".join(lines) + "\n"


def names_of(section: Mapping[str, Any], tree: Tree) -> set[str]:
    """Names of one section in one tree."""
    if "state" in section:
        return set(section["state"])
    if "schemas" in section:
        return schema_names(tree.read(section["schemas"]), section["keys"])
    found: set[str] = set()
    for source in section["read"]:
        if source.endswith(".pyi"):
            found |= stub_names(tree.read(source) or "")
            continue
        extractor = Extractor(tree, source)
        if section.get("public"):
            bound = extractor.bound(source)
            found |= bound.public if bound else set()
        else:
            found |= set(extractor.dotted(depth=section.get("depth", 3)))
        for name in set(section.get("members", [])) & found:
            found |= {f"{name}.{member}" for member in extractor.members(name)}
    for name, more in section.get("add", {}).items():
        found |= set(more) if name in found else set()
    return {name for name in found if not dropped(name, section.get("drop", []))}


def dropped(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern of `drop` names this name or a module above it."""
    parts = name.split(".")
    heads = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(fnmatch(head, pattern) for head in heads for pattern in patterns)


def schema_names(text: str | None, keys: Iterable[str]) -> set[str]:
    """Base names of the operators listed in a YAML of operator schemas."""
    if text is None:
        return set()
    document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    found: set[str] = set()
    for key in keys:
        for item in document.get(key) or []:
            schema = item if isinstance(item, str) else item.get("func", "")
            name = re.match(r"\w+", schema)
            if name:
                found.add(name[0])
    return found


def stub_names(text: str) -> set[str]:
    """Functions, classes and variables of a type stub's top level."""
    defined = re.findall(r"^(?:def|class) (_?[A-Za-z]\w*)", text, flags=re.MULTILINE)
    return {*defined, *re.findall(r"^([a-z]\w*): ", text, flags=re.MULTILINE)}


if __name__ == "__main__":
    main()
