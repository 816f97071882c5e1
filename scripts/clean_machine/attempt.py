"""Tries the exercises in one environment and says what came out."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.clean_machine.environment import Environment
from scripts.clean_machine.exercises import Exercise

LIMIT_S = 300
URL = re.compile(r"http://[0-9.]+:[1-9][0-9]*")
HELP = """
import contextlib, io, json
from joymigrate.cli._main import command_names, load, run

def walk(command, path):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from walk(inner, [*path, name])

broken, count = [], 0
for path in [[], *(p for name in command_names() for p in walk(load(name), [name]))]:
    out, count = io.StringIO(), count + 1
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = run([*path, "--help"])
    if code or "--help" not in out.getvalue():
        broken.append([" ".join(path), out.getvalue()[-400:]])
print(json.dumps([count, broken]))
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What one command came to. `fault` is None when it did as it should."""

    line: str
    seconds: float
    fault: str | None
    refused: bool = False


def explain_all(environment: Environment, cwd: Path) -> tuple[int, Result]:
    """`--help` of every command, also of those within commands; their number."""
    begin = time.monotonic()
    code, text = finished(environment, ["python", "-I", "-c", HELP], cwd)
    line = "joymigrate … --help, of every command"
    if code:
        return 0, Result(line, time.monotonic() - begin, tail(text))
    count, broken = json.loads(text.strip().splitlines()[-1])
    fault = "\n".join(f"{name}: {what}" for name, what in broken) or None
    return count, Result(line, time.monotonic() - begin, fault)


def attempt(
    exercise: Exercise, environment: Environment, cwd: Path, extra: str | None
) -> Result | None:
    """Try one exercise; None where it has no place in this environment."""
    if exercise.only and (extra or "core") not in exercise.only:
        return None
    able = not exercise.extras or extra in exercise.extras
    begin = time.monotonic()
    words = shlex.split(exercise.line)
    if exercise.ask is not None and able:
        fault = served(exercise, environment, words, cwd)
    else:
        code, text = finished(environment, words, cwd)
        fault = judged(exercise, code, text) if able else refusal(exercise, code, text)
    return Result(exercise.line, time.monotonic() - begin, fault, refused=not able)


def finished(
    environment: Environment, words: list[str], cwd: Path, more: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit code and all output of a command."""
    process = environment.start(words, cwd, more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        return 124, f"{text}\nnot finished after {LIMIT_S} s"
    return process.returncode, text


def judged(exercise: Exercise, code: int, text: str) -> str | None:
    """What is wrong with the outcome of a command that should work."""
    if "Traceback" in text:
        return f"a traceback\n{tail(text)}"
    if code != exercise.code:
        return f"exit code {code} instead of {exercise.code}\n{tail(text)}"
    if exercise.says not in text:
        return f"does not say '{exercise.says}'\n{tail(text)}"
    return None


def refusal(exercise: Exercise, code: int, text: str) -> str | None:
    """What is wrong with the way a command says that it needs an extra."""
    wanted = [f"pip install 'joymigrate[{extra}]'" for extra in exercise.extras]
    if "ascend" in exercise.extras:  # first torch, then the chip's package in a folder of its own
        wanted += ["pip install 'joymigrate[torch]'", "joymigrate rehearse setup"]
    if code != 2:
        return f"exit code {code} instead of 2\n{tail(text)}"
    if "Traceback" in text or text.count("error: ") != 1:
        return f"not one error\n{tail(text)}"
    if not any(want in text for want in wanted):
        return f"does not say {wanted[0]}\n{tail(text)}"
    return None


def served(exercise: Exercise, environment: Environment, words: list[str], cwd: Path) -> str | None:
    """Start a server, ask it, stop it; what went wrong."""
    assert exercise.ask is not None
    process = environment.start(words, cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines: list[str] = []
    found = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if exercise.says in line and URL.search(line):
                found.set()
        found.set()

    reader = threading.Thread(target=read)
    reader.start()
    found.wait(LIMIT_S)
    url = next((URL.search(line) for line in lines if exercise.says in line), None)
    wrong = None if url else "it never said where it listens"
    if url:
        wrong = asked(url.group(), *exercise.ask)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
        wrong = wrong or "it did not stop on SIGTERM"
    reader.join()
    if wrong is None and (code not in (0, 130, 143) or "Traceback" in "".join(lines)):
        wrong = f"it ended with {code}"
    return f"{wrong}\n{tail(''.join(lines))}" if wrong else None


def asked(url: str, path: str, body: Any) -> str | None:
    """What is wrong with the answer to one request; None when it is a good one."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return None if answer.read() else f"{path} gave an empty answer"
    except (urllib.error.URLError, OSError) as error:
        return f"{path}: {error}"


def tail(text: str) -> str:
    """The last lines of an output."""
    return "\n".join(f"    {line[:200]}" for line in text.strip().splitlines()[-12:])
