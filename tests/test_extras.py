"""A package of another extra that is missing is one error that names the extra."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate import extras
from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.schema.source import tomllib

REPOSITORY = Path(__file__).parents[1]
DECLARED = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
USERS = {
    extra: [extras.canonical(line) for line in lines]
    for extra, lines in DECLARED["optional-dependencies"].items()
    if extra not in extras.OURS
}


@pytest.mark.parametrize("extra", USERS)
def test_every_package_of_an_extra_is_found_in_it_or_in_a_smaller_one(extra: str) -> None:
    for package in USERS[extra]:
        found = extras.extras_of(package.replace("-", "_"))
        smaller = [name for name in found if set(USERS[name]) < set(USERS[extra])]
        assert extra in found or smaller


def test_a_package_of_the_core_or_of_nobody_has_no_extra() -> None:
    assert extras.extras_of("libcst") == []
    assert extras.extras_of("surely_absent") == []
    assert extras.how_to_get("surely-absent") == "pip install surely-absent"


def test_an_import_name_leads_to_its_distribution() -> None:
    assert extras.distribution("PIL.Image") == "pillow"
    assert set(extras.extras_of("PIL")) == {"serve", "train"}


def test_who_lacks_torch_is_told_the_least_extra_that_has_it() -> None:
    assert extras.install(*extras.extras_of("torch.nn")) == "pip install 'joymigrate[torch]'"
    assert extras.extras_of("torch_npu") == ["ascend"]


def test_what_is_needed_and_absent_is_named_with_its_extra() -> None:
    with pytest.raises(JoyError, match="drawing needs surely_absent") as error:
        extras.need("cluster", "json", "surely_absent", what="drawing")
    assert error.value.help == "pip install 'joymigrate[cluster]'"
    extras.need("cluster", "json", what="drawing")


def test_an_import_that_fails_inside_a_command_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def imports(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'ray'", name="ray.util")

    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("joymigrate.cli.status.must_exist", imports)
    assert run(["status"]) == 2
    error = capsys.readouterr().err
    assert error == "error: this needs ray\n  help: pip install 'joymigrate[cluster]'\n"


@pytest.mark.parametrize("name", ["joymigrate.surely_absent", "surely_absent", None])
def test_any_other_import_that_fails_is_our_bug(
    name: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def imports(*_: object) -> None:
        raise ImportError("no such thing", name=name)

    monkeypatch.setattr("joymigrate.cli.status.must_exist", imports)
    assert run(["status"]) == 2
    assert "this is a bug in joymigrate" in capsys.readouterr().err
