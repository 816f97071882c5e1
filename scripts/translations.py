"""Say which share of the texts of reports each language has, and list what is missing.

    python -m scripts.translations [--lang zh]

The texts are those of the rules' data, of the words by key and of the literals of the packages that
reports are made of. Nothing fails for want of a translation: such a text stays English. Formulas
and code, the same in every language, stand in `untranslatable.txt`.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joymigrate
from joymigrate.data import rules_root
from joymigrate.language import FIELD, catalogue, in_context, languages, read_texts
from joymigrate.schema import read_yaml

CODE = Path(joymigrate.__file__).parent
UNTRANSLATABLE = Path(__file__).with_name("untranslatable.txt")
# What reports are made of.
PACKAGES = [
    "blame", "rewrite", "chips/relation.py", "report/text.py",
    "report/scan_document.py", "report/result.py",
    "report/sarif.py", "report/github.py", "report/rewriting.py", "report/advice.py",
    "report/coverage.py",
    "report/verdict_text.py", "report/verdict.py", "report/renderers",
    "report/verdict_words.py", "report/verdict_curve.py", "report/verdict_generation.py",
    "report/verdict_operators.py", "report/verdict_quantise.py", "report/verdict_scope.py",
    "report/verdict_task.py", "verify/scope.py",
    "report/rehearsal_document.py", "report/coverage_document.py", "report/names.py",
    "report/pull_request.py", "lookup",
    "agent/next_step.py",
    "run/rehearse/report.py", "run/rehearse/summary.py",
    "run/rehearse/traps.py", "run/rehearse/streams.py", "profile/advice", "profile/coverage.py",
    "profile/oplist/lists.py", "profile/oplist/resolve.py", "verify/cause.py",
    "verify/compare.py", "verify/contents.py", "verify/files_stage.py",
    "verify/folding.py", "verify/free_stage.py", "verify/judgement.py",
    "verify/module_stage.py", "verify/free.py", "verify/generate.py", "verify/identity.py",
    "verify/isolated_pass.py", "verify/loss.py", "verify/model.py", "verify/optimiser_stage.py",
    "verify/ops/judge.py", "verify/ops/operator.py", "verify/ops/replay.py", "verify/rest_stage.py",
    "verify/printed_stage.py", "verify/rest_cause.py", "verify/task", "verify/update_cause.py",
    "verify/watch_stage.py",
    "journey/gates.py", "journey/mending.py", "journey/plan.py", "journey/runner.py",
    "journey/steps", "cli/_progress.py",
]  # fmt: skip
KEYS = {
    "title", "message", "why", "note", "notes", "problem", "action", "gain", "covers", "help",
    "returns", "keep", "resource_note", "image_note", "fp16_note", "missing_note", "dtypes_note",
    "install",
}  # fmt: skip
NOT_SAID = {
    "names.yaml",
    "topology.yaml",
    "sees.yaml",
    "monitor.yaml",
    "fused.yaml",
    "kernels.yaml",
}
WORD = re.compile(r"[A-Za-z]{2,}")


def is_said(text: str) -> bool:
    """Whether a text has words beside code: two of them, or one and a field."""
    plain = FIELD.sub("", re.sub(r"`[^`]*`", "", text))
    return " " in text.strip() and len(WORD.findall(plain)) >= (1 if FIELD.search(text) else 2)


def of_rules(folder: str) -> Iterator[str]:
    """The texts of one folder's YAML files."""
    root = rules_root() / folder
    for path in sorted(root.rglob("*.yaml")):
        if (
            (path.name in NOT_SAID and folder != "common")
            or {"zh", "en"} & set(path.parts)
            or path.stem == "zh"
        ):
            continue
        if path.name in ("alternatives.yaml",):
            for one in (read_yaml(path) or {}).values():
                yield from strings(one)
        elif path.name == "tolerance.yaml":
            continue
        else:
            yield from walk(read_yaml(path), "")


def strings(data: Any) -> Iterator[str]:
    """Every text inside plain data."""
    if isinstance(data, str):
        if is_said(data):
            yield data
    elif isinstance(data, dict):
        for one in data.values():
            yield from strings(one)
    elif isinstance(data, list):
        for one in data:
            yield from strings(one)


def walk(data: Any, key: str) -> Iterator[str]:
    """The texts under keys that are said."""
    if isinstance(data, dict):
        for name, one in data.items():
            if name in ("cases", "match"):
                continue
            if name == "keep" and isinstance(one, dict):
                yield from (text for text in one.values() if isinstance(text, str) and text)
            else:
                yield from walk(one, str(name))
    elif isinstance(data, list):
        for one in data:
            yield from walk(one, key)
    elif isinstance(data, str) and key in KEYS and WORD.search(data):
        yield data


def of_code(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every literal of a Python file that may be said.

    Left out are docstrings, messages of `JoyError`, parts of f-strings, patterns, the help of
    schemas, and the names of `fields`.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            left.add(id(body[0].value))
        name = node.func if isinstance(node, ast.Call) else None
        called = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
        if called in ("JoyError", "compile", "match", "search", "fullmatch", "sub", "ValueError",
                      "RuntimeError", "TypeError", "KeyError", "Option", "Argument", "setting",
                      "document", "fields"):  # fmt: skip
            left |= {id(one) for one in ast.walk(node)}
        if isinstance(node, ast.JoinedStr):
            left |= {id(one) for one in ast.walk(node) if isinstance(one, ast.Constant)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in left:
            continue
        if isinstance(node.value, str) and is_said(node.value) and "\n\n" not in node.value:
            yield node.lineno, node.value


def every_text() -> Iterator[tuple[str, str, str]]:
    """Place, text and context ("" for most) of all that a report may say."""
    for name in sorted(one.stem for one in (rules_root() / "common/en/words").glob("*.yaml")):
        for key, text in read_texts(name).items():
            if WORD.search(text):
                yield f"words/{name}.yaml: {key}", text, f"{name}.{key}"
    for folder in sorted(one.name for one in rules_root().iterdir() if one.is_dir()):
        for text in of_rules(folder):
            yield f"rules/{folder}", text, ""
    for package in PACKAGES:
        path = CODE / package
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for line, text in of_code(file):
                yield f"{file.relative_to(CODE.parent)}:{line}", text, ""


def main() -> None:
    """Print the share of each language, and the places of what it lacks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lang", action="append", help="one language; without: all, shares alone")
    chosen = parser.parse_args().lang
    same = {one.replace("\\n", "\n") for one in UNTRANSLATABLE.read_text("utf-8").splitlines()}
    places: dict[tuple[str, str], str] = {}
    for place, text, context in every_text():
        if text not in same:
            places.setdefault((text, context), place)
    for lang in chosen or [one for one in languages() if one != "en"]:
        known = catalogue(lang)
        missing = [
            (text, context)
            for text, context in places
            if text not in known and in_context(context, text) not in known
        ]
        done = len(places) - len(missing)
        print(f"{lang}: {done:,} of {len(places):,} texts translated ({done / len(places):.1%})")
        if chosen:
            print(*(f"{places[one]}: {one[0]}" for one in missing), sep="\n")


if __name__ == "__main__":
    main()
