"""What has to be known to repeat a journey."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import fields
from pathlib import Path

from typer import Typer
from typer.main import get_command

from joymigrate.cli import migrate
from joymigrate.journey import JourneyRequest
from joymigrate.journey.provenance import provenance, repeat


def request(project: Path) -> JourneyRequest:
    return JourneyRequest(project, ("python", "train.py", "--name", "a b"), "ascend", unsafe=True)


def test_versions_and_the_command(tmp_path: Path) -> None:
    found = provenance(request(tmp_path), chip_here=False)
    assert found["schema"] == "joymigrate.provenance/1"
    assert found["git"] is None
    assert found["versions"]["torch"]
    assert found["chip"]["here"] is False
    words = shlex.split(found["repeat"])
    assert words[:3] == ["joymigrate", "migrate", "."]
    assert shlex.split(words[words.index("--entry") + 1]) == list(request(tmp_path).entry)
    assert "--unsafe" in words


def test_the_command_asks_for_all_that_was_asked_for(tmp_path: Path) -> None:
    asked = {
        one.name: {"str": "x", "bool": True, "int | None": 2, "Path | None": tmp_path}.get(
            str(one.type), ("a b", "c")
        )
        for one in fields(JourneyRequest)
        if one.name not in ("pair", "origin")  # of `joymigrate pair`
    }
    asked |= {"project": tmp_path, "chip": "ascend"}
    command = repeat(JourneyRequest(**asked))
    options = {word for word in command if word.startswith("--")}
    known = {
        word
        for one in get_command(migrate_app()).params
        for word in (*one.opts, *one.secondary_opts)
    }
    assert len(options) == len(asked)  # without the project, with --fresh
    assert options <= known


def migrate_app() -> Typer:
    app = Typer()
    app.command()(migrate.command)
    return app


def test_the_commit_and_what_differs_from_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run([*command, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "a.py").write_text("1\n")
    git("add", "a.py")
    git("commit", "-qm", "Begin")
    (tmp_path / "a.py").write_text("2\n")
    found = provenance(request(tmp_path), chip_here=False)
    assert found["git"] == {"commit": git("rev-parse", "HEAD"), "changed_files": 1}
