"""The skill: every command in it is run; the paragraph of AGENTS.md; the plug-in's manifest."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from joymigrate.agent import paragraph
from joymigrate.cli._commands import command_names
from tests.cli.joy import Joy, joy_with

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills" / "joymigrate"
PAGES = sorted(SKILL.rglob("*.md"))
BLOCK = re.compile(r"```console\n(.*?)```", re.S)
COMMANDS = [
    line
    for page in PAGES
    for block in BLOCK.findall(page.read_text(encoding="utf-8"))
    for line in block.splitlines()
]
PROGRAM = "import torch\n\nx = torch.zeros(3).cuda()\nprint(x.sum().item())\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "joymigrate.toml").write_text("")
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def joy(capsys: pytest.CaptureFixture[str]) -> Joy:
    return joy_with(capsys)


def test_the_skill_has_commands_and_a_head() -> None:
    assert len(COMMANDS) >= 10
    head = yaml.safe_load((SKILL / "SKILL.md").read_text().split("---")[1])
    assert head["name"] == SKILL.name
    assert len(head["description"]) < 1_024


@pytest.mark.parametrize("line", [one for one in COMMANDS if " migrate " not in one])
def test_a_command_of_the_skill_runs(project: Path, joy: Joy, line: str) -> None:
    first, *words = shlex.split(line)
    assert first == "joymigrate"
    told = joy(*words)
    assert told.code in ((0, 1) if "--diff" in words or words[0] == "doctor" else (0,)), told.err


@pytest.mark.slow
@pytest.mark.parametrize("line", [one for one in COMMANDS if " migrate " in one])
def test_the_journey_of_the_skill_runs(project: Path, joy: Joy, line: str) -> None:
    assert joy(*shlex.split(line.replace(" --steps 3", ""))[1:]).code == 0
    assert joy("next", ".").lines[0] == "state: passed"


@pytest.mark.parametrize("line", [one for one in COMMANDS if " migrate " in one])
def test_the_journey_of_the_skill_is_planned(project: Path, joy: Joy, line: str) -> None:
    assert "rehearse" in joy(*shlex.split(line)[1:], "--dry-run").out


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_words_in_code_name_commands_that_there_are(page: Path) -> None:
    named = re.findall(r"`joymigrate ([a-z]+)", page.read_text(encoding="utf-8"))
    assert set(named) <= set(command_names())
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).is_file()


def test_the_manifest_starts_our_server() -> None:
    manifest = json.loads((ROOT / ".claude-plugin" / "plugin.json").read_text())
    server = manifest["mcpServers"]["joymigrate"]
    assert (server["command"], server["args"][0]) == ("joymigrate", "mcp")
    assert (ROOT / manifest["skills"] / "joymigrate" / "SKILL.md").is_file()


def test_the_paragraph_is_written_once_and_renewed_in_its_place(tmp_path: Path, joy: Joy) -> None:
    path = tmp_path / "AGENTS.md"
    path.write_text("# Ours\n\nKeep it short.")
    assert joy("init", str(tmp_path), "--agents").code == 0
    first = path.read_text()
    assert first.startswith("# Ours\n\nKeep it short.\n\n<!-- joymigrate: begin -->\n")
    path.write_text(first.replace("Use joymigrate", "Old words") + "\nBelow.\n")
    assert joy("init", str(tmp_path), "--agents").code == 0
    assert path.read_text() == first + "\nBelow.\n"
    assert not paragraph.write(path)


def test_mistakes_of_init_are_clear(tmp_path: Path, joy: Joy) -> None:
    assert "--agents" in joy("init", str(tmp_path)).err
    (tmp_path / "AGENTS.md").write_text(paragraph.BEGIN)
    assert "don't make a pair" in joy("init", str(tmp_path), "--agents").err
    shutil.rmtree(tmp_path / "x", ignore_errors=True)
    (tmp_path / "AGENTS.md").unlink()
    (tmp_path / "AGENTS.md").symlink_to(tmp_path / "else.md")
    assert joy("init", str(tmp_path), "--agents").code == 2
    assert not (tmp_path / "else.md").exists()


def test_the_commands_of_the_paragraph_are_there() -> None:
    assert set(re.findall(r"`joymigrate (\w+)", paragraph.TEXT)) <= set(command_names())
