"""Every text that a report may say has its Chinese, with the same fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.chips import all_chips, rules_root
from joymigrate.language import FIELD, HAN, catalogue, read
from tests.language import sources

FILES = sorted([*(rules_root() / "common" / "zh").glob("*.yaml"), *rules_root().glob("*/zh.yaml")])
# Texts that are code or a formula as they stand, and the same in both languages.
SAME = Path(__file__).parent / "same.txt"


def same() -> set[str]:
    return {
        line.replace("\\n", "\n")
        for line in SAME.read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#:")
    }


@pytest.mark.parametrize("folder", sorted(one.name for one in rules_root().iterdir()))
def test_every_text_of_the_rules_has_its_chinese(folder: str) -> None:
    known = catalogue("zh")
    missing = [t for t in dict.fromkeys(sources.of_rules(folder)) if t not in known]
    assert sorted(set(missing) - same()) == []


PACKAGES = [
    "rewrite", "chips/relation.py", "report/text.py", "report/md.py", "report/result.py",
    "report/sarif.py", "report/github.py", "report/rewriting.py", "report/advice.py",
    "report/coverage.py", "report/html/advice.py", "report/html/coverage.py",
    "report/verdict_text.py", "report/verdict_md.py", "report/verdict_html.py",
    "report/verdict_words.py", "report/verdict_curve.py", "report/verdict_generation.py",
    "report/verdict_operators.py", "report/verdict_quantise.py", "report/verdict_task.py",
    "run/rehearse/page.py", "run/rehearse/report.py", "run/rehearse/summary.py",
    "run/rehearse/traps.py", "profile/advice", "profile/coverage.py", "profile/oplist/lists.py",
    "profile/oplist/resolve.py", "verify/cause.py", "verify/compare.py", "verify/curve_stage.py",
    "verify/forced.py", "verify/free.py", "verify/generate.py", "verify/identity.py",
    "verify/isolated_pass.py", "verify/loss.py", "verify/model.py", "verify/optimiser_stage.py",
    "verify/ops/judge.py", "verify/ops/operator.py", "verify/ops/replay.py", "verify/task",
    "journey/gates.py", "journey/plan.py", "journey/runner.py", "journey/steps", "cli/_progress.py",
]  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_every_text_of_the_code_has_its_chinese(package: str) -> None:
    known, allowed = catalogue("zh"), same()
    path = sources.CODE / package
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    missing = [
        f"{file.relative_to(sources.CODE)}:{line}: {text}"
        for file in files
        for line, text in sources.of_code(file)
        if text not in known and text not in allowed
    ]
    assert missing == []


def fields(text: str) -> set[str]:
    """Names of a template's fields; the endings of plurals are English alone."""
    return {name for name in FIELD.findall(text) if not name.endswith(("_s", "_es"))}


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_catalogue_has_the_fields_of_the_english_text(path: Path) -> None:
    for english, chinese in read(path).items():
        assert fields(english) == fields(chinese), english


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_chinese_sentences_have_chinese_punctuation(path: Path) -> None:
    for english, chinese in read(path).items():
        for narrow in ",;?!":
            for at, char in enumerate(chinese):
                around = chinese[max(at - 1, 0) : at] + chinese[at + 1 : at + 2]
                assert not (char == narrow and HAN.search(around)), f"{english}: {chinese}"


def test_no_text_is_translated_twice() -> None:
    seen: dict[str, str] = {}
    for path in FILES:
        for english, chinese in read(path).items():
            assert seen.setdefault(english, chinese) == chinese, f"{path}: {english}"


def test_a_chip_may_bring_its_own_catalogue() -> None:
    # A plug-in's texts are read from its folder; without one they stay English.
    assert {chip.folder / "zh.yaml" for chip in all_chips().values()} & set(FILES)
