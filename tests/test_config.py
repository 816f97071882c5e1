"""Settings: where each value comes from, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate import config
from joymigrate.errors import JoyError
from scripts import pages


def written(folder: Path, text: str, name: str = "joymigrate.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def test_command_line_over_environment_over_file_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, 'to = "one"\nstyle = "shim"\njobs = 3\n')
    monkeypatch.setenv("JOYMIGRATE_TO", "two")
    found = config.load(tmp_path, {"style": "agnostic", "jobs": None})
    assert (found["to"], found.sources["to"]) == ("two", "environment JOYMIGRATE_TO")
    assert (found["style"], found.sources["style"]) == ("agnostic", "command line")
    assert (found["jobs"], found.sources["jobs"]) == (3, str(tmp_path / "joymigrate.toml"))
    assert (found["select"], found.sources["select"]) == ([], "default")


def test_the_nearest_file_counts_and_joymigrate_toml_before_pyproject(tmp_path: Path) -> None:
    written(tmp_path, "jobs = 1\n")
    inner = written(tmp_path / "a", "[tool.joymigrate]\njobs = 2\n", "pyproject.toml")
    assert config.load(inner / "deep.py")["jobs"] == 2
    written(inner, "jobs = 3\n")
    assert config.load(inner)["jobs"] == 3


def test_a_pyproject_without_our_table_hides_none_above(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.joymigrate]\nstyle = "agnostic"\n')
    (tmp_path / "part").mkdir()
    (tmp_path / "part/pyproject.toml").write_text('[project]\nname = "part"\n')
    assert config.load(tmp_path / "part")["style"] == "agnostic"


def test_a_named_file_takes_the_place_of_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "jobs = 1\n")
    other = written(tmp_path / "other", "[tool.joymigrate]\njobs = 9\n", "any.toml") / "any.toml"
    monkeypatch.setenv("JOYMIGRATE_SETTINGS", str(other))
    assert config.load(tmp_path)["jobs"] == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('stlye = "direct"\n', "unknown key 'stlye'. Did you mean 'style'?"),
        ('jobs = "two"\n', "'jobs' takes a whole number, got 'two'"),
        ("jobs = true\n", "'jobs' takes a whole number, got True"),
        ("[gatez]\n", "unknown key 'gatez'. Did you mean 'gates'?"),
        ("[gates]\ncovrage = 95\n", "unknown key 'covrage'. Did you mean 'coverage'?"),
        ("[effort]\nJM200 = -1\n", "'JM200' is -1, the least is 0"),
        ("[tool.joymigrat]\nto = 'x'\n", "[tool.joymigrat]. Did you mean [tool.joymigrate]?"),
        ("to = 'x'\n[tool.joymigrate]\n", "unknown key 'to'"),
        ('style = "shin"\n', "'style' does not know 'shin'. Did you mean 'shim'?"),
        ("jobs = \n", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    written(tmp_path, text)
    with pytest.raises(JoyError) as error:
        config.load(tmp_path)
    assert message in error.value.what
    assert str(tmp_path / "joymigrate.toml") in (error.value.where or "")


def test_the_documentation_has_every_key(tmp_path: Path) -> None:
    rows = [line.split("`")[1] for line in pages.settings().splitlines() if line.startswith("| `")]
    assert rows == list(config.load(tmp_path).values)


@pytest.mark.parametrize(
    ("table", "known"),
    [("joymigrat", False), ("joy-migrate", False), ("Joymigrate", False), ("migrate", True)],
)
def test_a_table_that_is_nearly_called_like_ours_is_named(
    tmp_path: Path, table: str, known: bool
) -> None:
    written(tmp_path, f"[tool.ruff]\n[tool.{table}]\njobs = 2\n", "pyproject.toml")
    if known:  # it may well be somebody else's
        assert config.load(tmp_path)["jobs"] == 0
        return
    with pytest.raises(JoyError, match=r"Did you mean \[tool.joymigrate\]") as error:
        config.load(tmp_path)
    assert error.value.where == f"{tmp_path / 'pyproject.toml'}:2 tool.{table}"


def test_a_mistake_names_its_line_in_the_file(tmp_path: Path) -> None:
    text = "[tool.ruff]\njobs = 'x'\n[tool.joymigrate]\nto = 'ascend'\n"
    written(tmp_path, text + "[tool.joymigrate.gates]\ncoverage = 101\n", "pyproject.toml")
    with pytest.raises(JoyError, match="'coverage' is 101, the most is 100") as error:
        config.load(tmp_path)
    assert error.value.where == f"{tmp_path / 'pyproject.toml'}:6 gates.coverage"
