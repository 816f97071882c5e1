"""Every text that a report may say has its Chinese, with the same fields."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.chips import all_chips, rules_root
from joymigrate.language import FIELD, HAN, catalogue, languages, read, read_texts
from tests.language import sources

COMMON = rules_root() / "common"
FILES = sorted(
    one
    for one in [*(COMMON / "zh").glob("*.yaml"), *rules_root().glob("*/zh.yaml")]
    if one.name != "language.yaml"
)
WORDS = sorted(one.stem for one in (COMMON / "en" / "words").glob("*.yaml"))
# Texts that are code or a formula as they stand, and the same in both languages.
SAME = Path(__file__).parent / "same.txt"


def same() -> set[str]:
    return {
        line.replace("\\n", "\n")
        for line in SAME.read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#:")
    }


# A chip's folder without Chinese is a start, as `chips new` writes it: its texts stay English.
FOLDERS = sorted(
    one.name
    for one in rules_root().iterdir()
    if not (one / "chip.yaml").is_file() or (one / "zh.yaml").is_file()
)


def test_the_chips_of_ours_have_chinese() -> None:
    assert len(FOLDERS) >= 10


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_text_of_the_rules_has_its_chinese(folder: str) -> None:
    known = catalogue("zh")
    missing = [t for t in dict.fromkeys(sources.of_rules(folder)) if t not in known]
    assert sorted(set(missing) - same()) == []


PACKAGES = [
    "blame", "rewrite", "chips/relation.py", "report/text.py", "report/md.py", "report/result.py",
    "report/sarif.py", "report/github.py", "report/rewriting.py", "report/advice.py",
    "report/coverage.py", "report/html/advice.py", "report/html/coverage.py",
    "report/verdict_text.py", "report/verdict_md.py", "report/verdict_html.py",
    "report/verdict_words.py", "report/verdict_curve.py", "report/verdict_generation.py",
    "report/verdict_operators.py", "report/verdict_quantise.py", "report/verdict_scope.py",
    "report/verdict_task.py", "verify/scope.py",
    "report/html/rehearsal.py", "report/names.py", "report/pull_request.py", "lookup",
    "agent/next_step.py",
    "run/rehearse/report.py", "run/rehearse/summary.py",
    "run/rehearse/traps.py", "run/rehearse/streams.py", "profile/advice", "profile/coverage.py",
    "profile/oplist/lists.py", "profile/oplist/resolve.py", "verify/cause.py",
    "verify/compare.py", "verify/contents.py", "verify/curve_stage.py", "verify/files_stage.py",
    "verify/folding.py", "verify/free_stage.py", "verify/judgement.py",
    "verify/module_stage.py", "verify/free.py", "verify/generate.py", "verify/identity.py",
    "verify/isolated_pass.py", "verify/loss.py", "verify/model.py", "verify/optimiser_stage.py",
    "verify/ops/judge.py", "verify/ops/operator.py", "verify/ops/replay.py", "verify/rest_stage.py",
    "verify/printed_stage.py", "verify/rest_cause.py", "verify/task", "verify/update_cause.py",
    "verify/watch_stage.py",
    "journey/gates.py", "journey/mending.py", "journey/plan.py", "journey/runner.py",
    "journey/steps", "cli/_progress.py",
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


@pytest.mark.parametrize("lang", [one for one in languages() if one != "en"])
@pytest.mark.parametrize("name", WORDS)
def test_words_by_key_have_every_key_and_its_fields(name: str, lang: str) -> None:
    english, other = read_texts(name, "en"), read_texts(name, lang)
    assert list(other) == list(english)
    for key, text in english.items():
        assert fields(text) == fields(other[key]), key
        assert all((text, other[key])), key


def test_a_third_language_is_a_folder_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(rules_root(), tmp_path / "rules")
    folder = tmp_path / "rules" / "common" / "fr"
    (folder / "words").mkdir(parents=True)
    (folder / "language.yaml").write_text(
        "tag: fr-FR\nname: français\nmarks: {list: ', ', clause: ', ', colon: ' : ', "
        "semicolon: ' ; ', or: ' ; ou ', open: ' (', close: ')', stop: '. '}\n"
    )
    (folder / "words" / "labels.yaml").write_text("areas: Par domaine\n")
    (folder / "report.yaml").write_text("- {en: Advice, fr: Conseils}\n")
    (tmp_path / "a.py").write_text("x.cuda()\n")
    program = (
        "import sys\nfrom pathlib import Path\nfrom joymigrate import data\n"
        f"data.rules_root = lambda: Path({str(tmp_path / 'rules')!r})\n"
        "from joymigrate.language import Language\nprint(Language('fr')('Advice'))\n"
        "from joymigrate.cli import main\nsys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "scan", "a.py", "--exit-zero", "--lang", "fr",
         "--format", "html"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Conseils\n")
    assert '<html lang="fr-FR">' in done.stdout
    assert "Par domaine" in done.stdout
    assert "Migration readiness" in done.stdout  # what is not translated stays English


def test_no_text_is_translated_twice() -> None:
    seen: dict[str, str] = {}
    for path in FILES:
        for english, chinese in read(path).items():
            assert seen.setdefault(english, chinese) == chinese, f"{path}: {english}"


def test_a_chip_may_bring_its_own_catalogue() -> None:
    # A plug-in's texts are read from its folder; without one they stay English.
    assert {chip.folder / "zh.yaml" for chip in all_chips().values()} & set(FILES)
