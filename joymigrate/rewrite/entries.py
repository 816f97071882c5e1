"""The import of the vendor's shim, for `--style shim`: in the files that start programs.

    python train.py, python -m pkg.train     a file with a `__main__` guard, or a loose script
    tool-train (of pyproject.toml)           the file that an installed command calls
    pytest                                   the outermost conftest.py, else the test's own file

Only where code for the origin's device is in reach of the program, before the first import that
reaches torch, as modules may ask for the device while they are imported. A package that asks so
gets it in its `__init__.py` too: it runs before the modules in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite import analyse, backend_import, under_shim
from joymigrate.rewrite.definitions import Definitions
from joymigrate.rewrite.device_tests import WAITS, is_test
from joymigrate.rewrite.files_together import ReachableFiles
from joymigrate.rewrite.import_trees import Trees
from joymigrate.rewrite.module_index import GUARD
from joymigrate.rewrite.programs import TORCH, Programs
from joymigrate.rewrite.vocabulary import Vocabulary

STATEMENT = re.compile(r"^(?:[A-Za-z_][\w.]*\s*\(|for |while |with )", re.M)
SETTINGS = re.compile(r"(?:^|/)(?:configs?|conf|settings)/")  # files that programs read
PYTEST = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$")
# Devices that users choose: options, settings, cards asked for of a framework.
CARDS = r"[\"']--(?:num[_-])?gpus?\b|\bgpus\s*=|\baccelerator\s*="
CHOSEN = re.compile(
    r"[\"']--?[\w-]*device\b"
    r"|\b(?:args?|opts?|options|cfg|config|conf|hparams|params|flags|FLAGS)\.(?:\w+\.)*\w*device\b"
)
RUNS_TORCH = re.compile(r"^\s*(?:import|from)\s+(?:torch|pytorch_lightning|lightning)\b", re.M)
WORDS = ("device", "gpu", "accelerator")


def add_imports(
    findings: Iterable[Finding],
    results: Iterable[analyse.FileAnalysis],
    reached: ReachableFiles,
    job: analyse.ScanContext,
    trees: Trees,
) -> list[Finding]:
    """The findings with an import of the shim in each file that starts a program for the device."""
    found, texts = list(findings), trees.texts
    done = {result.path: result for result in results}
    lines = {path: find_lines(done[path], text) for path, text in texts.items()}
    definitions = Definitions(trees, lines, Vocabulary.of(job.context).target_words)
    using = {path for path in texts if definitions.has_device(path)}
    early = {path for path in texts if done[path].asks_early}
    callers = reverse(reached, texts)
    named = reverse(reached, texts, packages=False)
    torch = {path for path, text in texts.items() if TORCH.search(text)}
    reaching = spread(using, named) & spread(torch, callers)
    reaching_early = spread(early, callers)
    programs = find_programs(texts, reached, callers)
    loading = {path for path in programs if done[path].loads_anywhere}
    programs = definitions.lead_to_device(programs & reaching, reaching) | loading
    chosen: dict[str, bool] = {}  # path → whether it waits as a test's
    for path in sorted(programs):
        if is_test(path) and path not in using:
            continue
        for home in (*packages_before(path, texts, reaching_early), path):
            chosen[home] = chosen.get(home, True) and is_test(path)
    for path, result in sorted(done.items()):
        told = result.device_lines or result.asks_tensors
        if told and path in texts and is_test(path) and PYTEST.search(path):
            home = conftest_of(path, texts)
            chosen.setdefault(home, True)
    by_path: dict[str, list[Finding]] = {}
    unanswered: dict[str, list[int]] = {}
    for one in found:
        by_path.setdefault(one.path, []).append(one)
        if one.rule == under_shim.CAPABILITY and not one.edits:
            unanswered.setdefault(one.path, []).append(one.line)
    fails = job.context.chip.shim.get("fails") or ()
    for path, waits in chosen.items():
        module = analyse.open_module(reached.files[path], job)
        if module is None:
            continue
        added = backend_import.shim(module, by_path.get(path, []))
        if added is not None:
            reason = Text(WAITS) if waits else None
            met = definitions.find_met(path, unanswered, fails)
            if met is not None:
                reason = Text(under_shim.MEETS, place=met)
            tier = Tier.UNSAFE if reason is not None else Tier.SAFE
            found.append(replace(added, tier=tier, reason=reason))
    return found


def find_lines(result: analyse.FileAnalysis, text: str) -> tuple[int, ...]:
    """Lines of a file with code for the origin's device, or by which the user chooses one."""
    if not any(word in text for word in WORDS):
        return result.device_lines
    signs = [*CHOSEN.finditer(text)]
    if RUNS_TORCH.search(text):
        signs += re.finditer(CARDS, text)
    chosen = (text.count("\n", 0, found.start()) + 1 for found in signs)
    return (*result.device_lines, *chosen)


def reverse(
    reached: ReachableFiles, texts: Mapping[str, str], *, packages: bool = True
) -> dict[str, set[str]]:
    """For each file the files that import it; without `packages`, those that name it.

    What a package's `__init__.py` imports, a program may well do without.
    """
    callers: dict[str, set[str]] = {}
    for path in texts:
        for other in reached.imported(path) if packages else reached.named(path):
            callers.setdefault(other, set()).add(path)
    return callers


def spread(start: set[str], callers: Mapping[str, set[str]]) -> set[str]:
    """Files that reach one of some files by their imports, and these files."""
    found, waiting = set(start), list(start)
    while waiting:
        for other in callers.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def find_programs(
    texts: Mapping[str, str], reached: ReachableFiles, callers: Mapping[str, set[str]]
) -> set[str]:
    """Files in which programs start."""
    found = {path for path in Programs(reached, texts).installed.values() if path in texts}
    for path, text in texts.items():
        if ("__main__" in text and GUARD.search(text)) or (
            STATEMENT.search(text)
            and not (
                path.rpartition("/")[2] in ("setup.py", "conftest.py")
                or PYTEST.search(path)
                or SETTINGS.search(path)
                or callers.get(path)
                or reached.tree.package(path)
            )
        ):
            found.add(path)
    return found


def packages_before(path: str, texts: Mapping[str, str], early: Iterable[str]) -> Iterator[str]:
    """The outermost package around a file that asks for the device while it is imported."""
    folder = str(PurePosixPath(path).parent)
    around = []
    while folder != "." and f"{folder}/__init__.py" in texts:
        around.append(f"{folder}/__init__.py")
        folder = str(PurePosixPath(folder).parent)
    asking = [each for each in around if each in early and each != path]
    yield from asking[-1:]


def conftest_of(path: str, texts: Mapping[str, str]) -> str:
    """The outermost conftest.py above a test; the test itself without one."""
    folders = [str(each) for each in PurePosixPath(path).parents][::-1]
    for folder in folders:
        name = "conftest.py" if folder == "." else f"{folder}/conftest.py"
        if name in texts:
            return name
    return path
