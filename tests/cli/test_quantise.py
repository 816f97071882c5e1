"""`joymigrate quantise`: files, verdict, ledger, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate.cli._main import run as joymigrate
from joymigrate.ledger import Ledger
from joymigrate.ledger.subject import of_folder
from tests.run.train.quantise.models import samples, tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with outlier channels, and samples."""
    folder = tmp_path_factory.mktemp("cli")
    tiny(folder / "model", "llama", outliers=True)
    samples(folder / "calib.jsonl")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own, which the command runs in."""
    (tmp_path / "joymigrate.toml").touch()
    monkeypatch.chdir(tmp_path)
    return made


def run(place: Path, *more: str) -> int:
    data = ["--data", str(place / "calib.jsonl")]
    return joymigrate(["quantise", str(place / "model"), *data, "-o", "out", *more])


@pytest.mark.dear
def test_the_verdict_is_shown_and_recorded(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(place, "--scheme", "w8a8", "--report", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "joymigrate.verdict/1"
    assert document["verdict"] == "pass"
    found = document["quantise"]
    assert found["scheme"] == "w8a8"
    assert found["held_out"]
    assert found["perplexity"]["plain"] > 1
    assert {one["layer"] for one in found["errors"]} == {"model.layers.0", "model.layers.1"}
    standing = Ledger.of(Path.cwd()).verdict(of_folder(Path("out")), "cpu")
    assert standing.refusal(rehearsal=False) is None


def test_rounding_to_nearest_fails_with_outliers(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(place, "--nearest") == 1
    said = capsys.readouterr().out
    assert said.startswith("FAIL")
    assert "no search was asked for" in said


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_every_report_shows_the_layers(
    place: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    assert run(place, "--scheme", "w4a16", "--report", form, "--min-top1", "0.1") == 0
    assert "layers.1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--scheme", "w8a16"), "there is no scheme 'w8a16'"),
        (("--alpha", "high"), "--alpha is 'high'"),
        (("--format", "gguf"), "there is no format 'gguf'"),
        (("--scheme", "w4a16", "--group", "128"), "--group 32"),
        (("--report", "xml"), "--format does not know 'xml'"),
    ],
)
def test_what_cannot_be_is_one_clear_error(
    place: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], reason: str
) -> None:
    assert run(place, *more) == 2
    assert reason in capsys.readouterr().err
    assert not Path("out").exists()
