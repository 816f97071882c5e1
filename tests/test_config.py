"""Settings: where each value comes from, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate import config
from joymigrate.errors import JoyError

DOCS = Path(__file__).parents[1] / "docs" / "configuration.md"


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
        ('jobs = "two"\n', "'jobs' must be int, got 'two'"),
        ("jobs = true\n", "'jobs' must be int, got True"),
        ("jobs = \n", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    written(tmp_path, text)
    with pytest.raises(JoyError) as error:
        config.load(tmp_path)
    assert message in error.value.what
    assert str(tmp_path / "joymigrate.toml") in (error.value.where or "")


def test_the_documentation_has_every_key() -> None:
    rows = [line.split("`")[1] for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    assert rows == list(config.OPTIONS)
