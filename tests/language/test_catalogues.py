"""What is translated has the fields of its English text; what is not stays English."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.chips import all_chips, rules_root
from joymigrate.language import FIELD, HAN, read_catalogue
from scripts.translations import CODE, PACKAGES

COMMON = rules_root() / "common"
FILES = sorted([*(COMMON / "zh").glob("*.po"), *rules_root().glob("*/zh.po")])


def fields(text: str) -> set[str]:
    """Names of a template's fields; the endings of plurals are English alone."""
    return {name for name in FIELD.findall(text) if not name.endswith(("_s", "_es"))}


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_catalogue_has_the_fields_of_the_english_text(path: Path) -> None:
    for english, chinese in read_catalogue(path).items():
        assert fields(english) == fields(chinese), english


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_chinese_sentences_have_chinese_punctuation(path: Path) -> None:
    for english, chinese in read_catalogue(path).items():
        for narrow in ",;?!":
            for at, char in enumerate(chinese):
                around = chinese[max(at - 1, 0) : at] + chinese[at + 1 : at + 2]
                assert not (char == narrow and HAN.search(around)), f"{english}: {chinese}"


def test_a_third_language_is_a_folder_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(rules_root(), tmp_path / "rules")
    folder = tmp_path / "rules" / "common" / "fr"
    folder.mkdir()
    (folder / "language.yaml").write_text(
        "tag: fr-FR\nname: français\nmarks: {list: ', ', clause: ', ', colon: ' : ', "
        "semicolon: ' ; ', or: ' ; ou ', open: ' (', close: ')', stop: '. '}\n"
    )
    (folder / "report.po").write_text(
        'msgid "Advice"\nmsgstr "Conseils"\n\nmsgid "By area"\nmsgstr "Par domaine"\n'
    )
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
        for english, chinese in read_catalogue(path).items():
            assert seen.setdefault(english, chinese) == chinese, f"{path}: {english}"


def test_a_chip_may_bring_its_own_catalogue() -> None:
    # A plug-in's texts are read from its folder; without one they stay English.
    assert {chip.folder / "zh.po" for chip in all_chips().values()} & set(FILES)


def test_what_is_counted_for_translation_is_there() -> None:
    assert [one for one in PACKAGES if not (CODE / one).exists()] == []
