"""`joymigrate doctor`: what is here, what is missing, and where each setting comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from joymigrate.chips import Chip, all_chips
from joymigrate.cli import _installed
from joymigrate.cli._main import command_names, run


def test_json_covers_every_command_and_extra(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "joymigrate.doctor/1"
    assert [item["command"] for item in document["commands"]] == command_names()
    kinds = {check["kind"] for check in document["checks"]}
    assert kinds == {"core", "chip", "program", "extra"}
    core = {c["name"]: c for c in document["checks"] if c["kind"] == "core"}
    assert core["torch"]["status"] == "ok"
    for check in document["checks"]:
        assert check["status"] == "ok" or check["help"], check


@pytest.mark.parametrize("chip", list(all_chips().values()), ids=lambda chip: chip.name)
def test_every_chip_can_be_looked_for(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_installed, "probe", lambda chip: ("it does not load", 0, ""))
    for check in _installed.chip_checks(chip):
        assert check.status == "ok" or check.help
    name = chip.distribution or chip.name
    for loads in (True, False):
        for check in _installed.toolkit(chip, "1.0", loads=loads):
            assert (check.status == "ok") == loads
            assert name in check.detail


def test_text_says_how_to_get_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(_installed, "probe", lambda chip: (None, 2, "card"))
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "--  cc" in out
    assert "help: apt-get install gcc libc6-dev" in out
    assert "--  chromium" in out


def test_every_setting_has_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOYMIGRATE_TO", "nvidia")
    path = tmp_path / "joymigrate.toml"
    path.write_text('style = "agnostic"\n')
    arguments = ["doctor", "--show-config", "--project", str(tmp_path)]
    assert run([*arguments, "--format", "json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)["config"]}
    assert rows["style"] == {"key": "style", "value": "agnostic", "source": str(path)}
    assert rows["to"]["source"] == "environment JOYMIGRATE_TO"
    assert rows["jobs"]["source"] == "default"
    assert run(arguments) == 0
    assert f'"agnostic"  {path}' in " ".join(capsys.readouterr().out.split(" ")).replace(
        "   ", "  "
    )


def test_a_wrong_setting_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "joymigrate.toml").write_text('stile = "agnostic"\n')
    assert run(["doctor", "--show-config", "--project", str(tmp_path)]) == 2
    assert "Did you mean 'style'?" in capsys.readouterr().err


def test_a_command_that_needs_what_is_missing_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from joymigrate.chips import target

    (tmp_path / "one.py").write_text('"""One."""\nNEEDS = ("program:cc", "chip")\n')
    (tmp_path / "two.py").write_text('"""Two."""\n')
    monkeypatch.setattr(_installed, "COMMANDS", tmp_path)
    chip = target(None)
    found = [
        _installed.Check("program", "cc", "missing", help="apt-get install gcc"),
        _installed.Check("chip", chip.distribution or "", "broken", help="driver"),
    ]
    one, two = _installed.readiness(["one", "two"], found, chip)
    assert not one.ready
    assert one.missing == ("cc: apt-get install gcc", f"{chip.distribution}: driver")
    assert two.ready


def test_a_version_outside_the_range_counts_as_missing() -> None:
    assert not _installed.satisfied(Requirement("typer<0.0.1"))
    assert not _installed.satisfied(Requirement("surely-absent-distribution"))
    assert _installed.satisfied(Requirement("typer>=0.15"))
