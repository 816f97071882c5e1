"""scripts/clean_machine: what it takes for a fault, and that it forgets no extra and no command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from joymigrate.cli import _requirements
from joymigrate.cli._main import command_names
from joymigrate.schema.source import tomllib
from scripts.clean_machine import attempt, build, workplace
from scripts.clean_machine.__main__ import OURS, REPOSITORY, Line
from scripts.clean_machine.attempt import Result
from scripts.clean_machine.environment import Environment
from scripts.clean_machine.exercises import EXERCISES, Exercise
from scripts.clean_machine.extras import declared

REFUSED = "error: this needs ray\n  help: pip install 'joymigrate[cluster]'\n"
RAY = Exercise("joymigrate cluster submit ray.yaml", ("cluster",))
SCAN = Exercise("joymigrate scan .", code=1, says="Found")


@pytest.fixture
def here(tmp_path: Path) -> Environment:
    """This test's own Python as the environment."""
    return Environment(Path(sys.executable).parents[1], tmp_path)


def test_the_extras_are_those_of_pyproject() -> None:
    path = REPOSITORY / "pyproject.toml"
    table = tomllib.loads(path.read_text())["project"]["optional-dependencies"]
    assert declared(path) == [*table]


def test_every_extra_has_a_command_that_needs_it() -> None:
    used = {extra for exercise in EXERCISES for extra in exercise.extras}
    # They add to what serve does where its settings or a variable ask; tests/run/serve has them.
    beside = {"envoy", "otel"}
    assert used == set(declared(REPOSITORY / "pyproject.toml")) - set(OURS) - beside


def test_every_command_is_tried_unless_it_says_why_not() -> None:
    left_out = {
        "run": "needs a chip",
        "bundle": "collects hundreds of wheels; tests/run/bundle installs one",
        "migrate": "its plan is; the whole journey is what make demo does",
        "kit": "needs a chip, or the simulated one; tests/run/kit has it",
        "convert": "needs another platform's files; tests/run/checkpoint, tests/run/tensorflow",
        "render": "writes files from a lock; tests/cli has it",
        "pair": "runs both sides of a port; tests/journey has it",
        "baseline": "runs a CUDA program by stand-ins; tests/run/door has it",
    }
    tried = {exercise.line.split()[1] for exercise in EXERCISES}
    assert set(command_names()) - tried <= set(left_out)
    for name in tried:
        assert _requirements.uses(name)


@pytest.mark.parametrize(
    ("code", "text", "fault"),
    [
        (1, "Found 2 sites", None),
        (0, "Found 2 sites", "exit code 0 instead of 1"),
        (1, "nothing", "does not say 'Found'"),
        (1, "Found\nTraceback (most recent call last):", "a traceback"),
    ],
)
def test_a_command_that_should_work_is_judged(code: int, text: str, fault: str | None) -> None:
    found = attempt.judged(SCAN, code, text)
    assert found is None if fault is None else str(found).startswith(fault)


@pytest.mark.parametrize(
    ("code", "text", "fault"),
    [
        (2, REFUSED, None),
        (0, REFUSED, "exit code 0 instead of 2"),
        (2, REFUSED + REFUSED, "not one error"),
        (2, f"Traceback\n{REFUSED}", "not one error"),
        (2, REFUSED.replace("cluster", "serve"), "does not say pip install"),
    ],
)
def test_a_refusal_must_name_the_extra_in_one_error(
    code: int, text: str, fault: str | None
) -> None:
    found = attempt.refusal(RAY, code, text)
    assert found is None if fault is None else str(found).startswith(fault)


def test_a_server_is_asked_and_stopped(here: Environment, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(
        "import signal, sys\n"
        "from http.server import HTTPServer, SimpleHTTPRequestHandler\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "server = HTTPServer(('127.0.0.1', 0), SimpleHTTPRequestHandler)\n"
        "print(f'Serving http://127.0.0.1:{server.server_port}', flush=True)\n"
        "server.serve_forever()\n"
    )
    line = "python server.py"
    server = Exercise(line, says="Serving", ask=("/", None))
    assert attempt.served(server, here, line.split(), tmp_path) is None
    lost = Exercise(line, says="Serving", ask=("/absent", None))
    assert "404" in str(attempt.served(lost, here, line.split(), tmp_path))


def test_a_server_that_ends_at_once_is_a_fault(here: Environment, tmp_path: Path) -> None:
    words = ["python", "-c", "print('no')"]
    found = attempt.served(Exercise("x", says="http", ask=("/", None)), here, words, tmp_path)
    assert str(found).startswith("it never said where it listens")


def test_nothing_of_ours_reaches_the_user_s_shell(
    here: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "JOYMIGRATE_TO", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        monkeypatch.setenv(name, "1")
    assert set(here.variables()) <= {"HOME", "LANG", "PATH", "TERM", "SSL_CERT_FILE", "TMPDIR"}


def test_the_workplace_has_every_file_that_is_named(tmp_path: Path) -> None:
    workplace.filled(tmp_path / "work", REPOSITORY / "examples" / "gpt")
    there = {path.name for path in (tmp_path / "work").iterdir()}
    named = {
        word
        for exercise in EXERCISES
        for word in exercise.line.split()
        if word.endswith((".yaml", ".py", ".csv"))
    }
    made = {"other.yaml", "rendered.yaml"}  # by the commands themselves
    assert named - made <= there


def test_a_table_line_counts_what_worked_what_was_refused_and_what_failed() -> None:
    results = (Result("a", 1, None), Result("b", 1, None, refused=True), Result("c", 1, "no"))
    line = Line("serve", 3 * 2**20, 5, 78, results, 60)
    assert line.text().split() == ["serve", "3", "5", "78", "1", "1", "60", "FAILED", "1"]


def test_a_step_that_fails_shows_its_last_lines() -> None:
    with pytest.raises(build.Broken, match="ended with 3\nlast words"):
        build.command([sys.executable, "-c", "print('last words'); raise SystemExit(3)"])
