"""`joymigrate doctor`: what is here, what is missing, and where each setting comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from joymigrate.chips import Chip, all_chips
from joymigrate.cli import _installation, _requirements
from joymigrate.cli._main import command_names, load, run
from joymigrate.extras import extras_of, read_extras
from scripts.clean_machine.exercises import EXERCISES, Exercise


@pytest.mark.dear
def test_json_covers_every_command_and_extra(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "joymigrate.doctor/1"
    assert [item["command"] for item in document["commands"]] == command_names()
    kinds = {check["kind"] for check in document["checks"]}
    assert kinds == {"core", "chip", "program", "extra"}
    core = {c["name"]: c for c in document["checks"] if c["kind"] == "core"}
    assert core["libcst"]["status"] == "ok"
    assert "torch" not in core
    for check in document["checks"]:
        assert check["status"] == "ok" or check["help"], check


@pytest.mark.parametrize("chip", list(all_chips().values()), ids=lambda chip: chip.name)
def test_every_chip_can_be_looked_for(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_installation, "probe", lambda chip: ("it does not load", 0, ""))
    for check in _installation.chip_checks(chip):
        assert check.status == "ok" or check.help
    name = chip.distribution or chip.name
    for loads in (True, False):
        for check in _installation.toolkit(chip, "1.0", loads=loads):
            assert (check.status == "ok") == loads
            assert name in check.detail


def test_text_says_how_to_get_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(_installation, "probe", lambda chip: (None, 2, "card"))
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


def lacking(
    needs: tuple[str, ...], *found: _installation.Check, wants: dict[str, str] | None = None
) -> _requirements.CommandReadiness:
    """What a use with these needs comes to when the checks found this."""
    from joymigrate.chips import target

    use = _requirements.CommandUse("one", "two", needs, wants)
    return _requirements.readiness([use], list(found), target(None))[0]


NO_CC = _installation.Check("program", "cc", "missing", help="apt-get install gcc")
NO_DRIVER = _installation.Check("chip", "torch-npu", "broken", help="driver")
NO_PACKAGE = _installation.Check("chip", "torch-npu", "missing", help="extra")


@pytest.mark.parametrize(
    ("need", "found", "missing"),
    [
        ("program:cc", NO_CC, ("cc: apt-get install gcc",)),
        ("program:git", NO_CC, ()),
        ("chip", NO_DRIVER, ("torch-npu: driver",)),
        ("chip-package", NO_DRIVER, ()),
        ("chip-package", NO_PACKAGE, ("torch-npu: extra",)),
        ("rehearsal", NO_DRIVER, ()),
        ("rehearsal", NO_CC, ("cc: apt-get install gcc",)),
        ("rehearsal", NO_PACKAGE, ("torch-npu: joymigrate rehearse setup",)),
        ("chip|rehearsal", NO_DRIVER, ()),
        ("chip|rehearsal", NO_CC, ()),
        ("chip|rehearsal", NO_PACKAGE, ("torch-npu: joymigrate rehearse setup",)),
        ("package:typer", NO_CC, ()),
        ("package:surely-absent", NO_CC, ("surely-absent: pip install surely-absent",)),
    ],
)
def test_a_use_that_needs_what_is_missing_is_not_ready(
    need: str,
    found: _installation.Check,
    missing: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_installation, "can_find_package", lambda: found is not NO_PACKAGE)
    answer = lacking((need,), found)
    assert answer.missing == missing
    assert answer.ready == (not missing)


def test_what_is_only_wanted_leaves_a_use_ready() -> None:
    answer = lacking((), NO_CC, wants={"program:cc": "--compile"})
    assert answer.ready
    assert answer.without == ("--compile: cc: apt-get install gcc",)


def test_a_chip_that_cannot_be_simulated_is_needed_itself() -> None:
    chip = next(c for c in all_chips().values() if not (c.origin or _installation.can_rehearse(c)))
    absent = _installation.Check("chip", chip.distribution or chip.name, "missing", help="vendor")
    use = _requirements.CommandUse("migrate", "", ("chip|rehearsal",))
    (answer,) = _requirements.readiness([use], [absent], chip)
    assert answer.missing == (f"{absent.name}: vendor",)


LEAVES = {
    f"{name} {leaf}".strip(): name
    for name in command_names()
    for leaf in _requirements.leaves(load(name))
}


def test_every_command_has_a_use_and_no_declaration_is_about_nothing() -> None:
    every = {use.name for name in command_names() for use in _requirements.uses(name)}
    for leaf, command in LEAVES.items():
        if leaf == command or leaf.endswith(f" {_requirements.HIDDEN}"):
            assert any(use.command == command for use in _requirements.uses(command))
            continue
        assert leaf in every
    for name in command_names():
        inner = [leaf.removeprefix(name).strip() for leaf in LEAVES if LEAVES[leaf] == name]
        needs, wants = _requirements.read_declared(name)
        for way in (*needs, *wants):
            first = way.partition(" ")[0]
            own = HIDDEN_OR_PLAIN & set(inner)
            assert way in ("", *inner) or first in inner or own, f"{name}: {way}"


HIDDEN_OR_PLAIN = {_requirements.HIDDEN, ""}
KINDS = {"chip", "chip-package", "rehearsal", "extra", "package", "program"}


def test_every_need_is_one_that_can_be_judged() -> None:
    extras = {check.name for check in _installation.extras()}
    for name in command_names():
        for use in _requirements.uses(name):
            for need in (*use.needs, *(use.wants or ())):
                for part in need.split("|"):
                    kind, _, what = part.partition(":")
                    assert kind in KINDS, need
                    assert kind != "extra" or what in extras
                    assert kind != "program" or what in _installation.PROGRAMS
                    assert kind != "package" or extras_of(what), f"no extra brings {what}"


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.line)
def test_what_the_clean_machine_showed_a_command_to_need_is_declared(exercise: Exercise) -> None:
    """scripts/clean_machine runs each line without its extras; doctor must say the same."""
    words = exercise.line.split()[1:]
    uses = [use for use in _requirements.uses(words[0]) if " ".join(words).startswith(use.name)]
    options = [use for use in _requirements.uses(words[0]) if use.way.split(" ")[0] in words[1:]]
    found = max(options or uses or _requirements.uses(words[0])[:1], key=lambda use: len(use.way))
    needed = {extra for need in found.needs for extra in brought(need)}
    wanted = {extra for need in found.wants or () for extra in brought(need)}
    if exercise.extras:
        assert set(exercise.extras) <= needed | wanted, found
    elif not exercise.only and exercise.code == 0:
        assert not needed, found


def brought(need: str) -> set[str]:
    """The extras that can meet a need."""
    kind, _, name = need.rpartition("|")[2].partition(":")
    if kind == "extra":
        return {extra for extra, names in read_extras().items() if names >= read_extras()[name]}
    if kind == "package":
        return set(extras_of(name))
    return {"ascend"} if kind in ("rehearsal", "chip-package") else set()


def test_a_command_that_is_asked_about_decides_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_installation, "has", lambda name: name != "ray")
    assert run(["doctor", "cluster", "submit"]) == 1
    assert capsys.readouterr().out == (
        "  --  cluster    submit\n        ray: pip install 'joymigrate[cluster]'\n"
    )
    assert run(["doctor", "cluster", "plan"]) == 0
    assert run(["doctor", "cluster"]) == 1
    out = capsys.readouterr().out
    assert "ok  cluster    plan, simulate, what-if, detect, render" in out
    assert "--  cluster    submit, status, cancel, logs, metrics" in out
    assert run(["doctor", "cluster", "plan", "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["commands"]
    assert found["uses"] == [{"use": "cluster plan", "ready": True, "missing": [], "without": []}]


@pytest.mark.parametrize(
    ("words", "near"), [(["serv"], "serve"), (["cluster", "submitt"], "submit")]
)
def test_an_unknown_command_is_an_error_with_the_nearest(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", *words]) == 2
    assert f"Did you mean '{near}'?" in capsys.readouterr().err


def test_a_version_outside_the_range_counts_as_missing() -> None:
    assert not _installation.is_satisfied(Requirement("typer<0.0.1"))
    assert not _installation.is_satisfied(Requirement("surely-absent-distribution"))
    assert _installation.is_satisfied(Requirement("typer>=0.15"))
