"""Files that run without the project around them: those that a server or an image takes alone.

TorchServe unpacks an archive of one handler and the files named beside it; SageMaker takes a file
with its functions; a Dockerfile may copy single files. What is packed as a folder (`bentoml build`,
`cog build`, SageMaker's `source_dir`, a KServe image with `COPY .`) brings the helper along.
Sources: docs.pytorch.org/serve/custom_service.html (entry points of a handler) and
docs/torch-model-archiver; sagemaker.readthedocs.io, "Deploy PyTorch models" (names of functions).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from posixpath import normpath

from joymigrate.rewrite.discover import File

TORCHSERVE = "a handler of TorchServe"
SAGEMAKER = "a file of SageMaker"
ARCHIVED = "a file in an archive of TorchServe"
COPIED = "a file that a Dockerfile takes alone"
SIGNS = ("torch_handler", "def initialize(self, c", "torch-model-archiver", ", context):")
TELLING = (".md", ".sh", ".json", ".yaml", ".yml", ".py")  # files that hold such commands
LONGEST = 1_000_000  # bytes of a file that is read for them
NAMED = re.compile(
    r"(?:--(?:handler|model-file|extra-files)(?:[ \t]*=[ \t]*|[ \t]+)"
    r"|[\"'](?:handler|model_file|extra_files)[\"']\s*:\s*)[\"']?([^\s\"']+)"
)
COPY = re.compile(r"^[ \t]*(?:COPY|ADD)[ \t]+((?:--\S+[ \t]+)*)(.+)$", re.M | re.I)
STEPS = frozenset(("input_fn", "predict_fn", "output_fn", "transform_fn"))
CONTEXTS = ("context", "ctx", "_context")


def find_packed(root: Path, files: Iterable[File], texts: Mapping[str, str]) -> dict[str, str]:
    """Python files (of `texts`) that the project's commands pack without the rest: what each is.

    `root` is the folder that paths are relative to. Commands are looked for beside the files that
    look like a handler, and in the folder above; those of Dockerfiles wherever these are.
    """
    found: dict[str, str] = {}
    for file in files:
        if file.kind == "dockerfile":
            alone = find_copied(file.relative, text_of(file.path), texts)
            found |= dict.fromkeys(alone, COPIED)
    signed = [PurePosixPath(p) for p, t in texts.items() if any(sign in t for sign in SIGNS)]
    for folder in sorted({each for path in signed for each in (path.parent, path.parent.parent)}):
        for place in sorted((root / folder).glob("*")):
            if place.suffix in TELLING and place.is_file() and place.stat().st_size < LONGEST:
                for words in NAMED.findall(text_of(place)):
                    found |= dict.fromkeys(find_archived(words, folder, texts), ARCHIVED)
    return found


def text_of(path: Path) -> str:
    """The text of a file; empty where it can't be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def find_archived(words: str, folder: PurePosixPath, texts: Mapping[str, str]) -> set[str]:
    """Python files that an option's value (`a/handler.py:serve`, `x.py,y.json`) names.

    They are looked for in the folder of the file that gives it, and in that of the project.
    """
    names = [word.partition(":")[0].removesuffix(".py") for word in words.split(",")]
    paths = {normpath(base / f"{name}.py") for name in names for base in (folder, PurePosixPath())}
    return paths & texts.keys()


def find_copied(dockerfile: str, text: str, texts: Mapping[str, str]) -> set[str]:
    """Python files that a Dockerfile copies by their names, and not with their folder as well."""
    folder = PurePosixPath(dockerfile).parent
    words = [
        str(PurePosixPath(word))
        for options, rest in COPY.findall(text)
        if "--from" not in options
        for word in rest.replace('"', " ").strip("[] ").replace(",", " ").split()[:-1]
    ]
    whole = [f"{word}/" for word in words if not word.endswith(".py")]
    if any(word == "./" or "*" in word or "$" in word for word in whole):
        return set()
    alone = {
        word
        for word in words
        if word.endswith(".py") and word != "setup.py" and not word.startswith(tuple(whole))
    }
    paths = {str(base / word) for word in alone for base in (folder, PurePosixPath())}
    return paths & texts.keys()


def find_server(tree: ast.Module, name: str) -> str | None:
    """What a server takes alone of a file with this last name, by its form; None if nothing."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if "model_fn" in functions and STEPS & functions.keys():
        return SAGEMAKER
    called = name == "handler.py" or name.endswith("_handler.py")
    if called and any(parameters(node) in contexts("data") for node in functions.values()):
        return TORCHSERVE
    for each in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        methods = {node.name: node for node in each.body if isinstance(node, ast.FunctionDef)}
        if parameters(methods.get("initialize")) in contexts("self") and "handle" in methods:
            return TORCHSERVE
    return None


def parameters(node: ast.FunctionDef | None) -> list[str]:
    """The names of a function's parameters; none of no function."""
    return [] if node is None else [each.arg for each in node.args.args]


def contexts(first: str) -> list[list[str]]:
    """The parameters of an entry point: what it is given, and the server's context."""
    return [[first, name] for name in CONTEXTS]
