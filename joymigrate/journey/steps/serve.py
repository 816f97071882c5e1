"""Serve the model of the project and ask it something."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from joymigrate.journey.child import end, start
from joymigrate.journey.context import StepContext
from joymigrate.journey.model import StepOutcome, StepStatus
from joymigrate.language import Text
from joymigrate.run.serve.engine.launch import free_port

READY_SECONDS = 180.0
ANSWER_SECONDS = 120.0
STOP_SECONDS = 20.0  # running requests may end
ASKED = {"prompt": [1, 2, 3, 4], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def run(at: StepContext) -> StepOutcome:
    """Start the engine on a folder of weights, send one request, stop it."""
    folder = at.request.serve or found_model(at.request.project)
    if folder is None:
        return StepOutcome("serve", StepStatus.SKIPPED, "no folder with a language model's weights")
    words = ["serve", str(folder), "--port", str(free_port())]
    at.ran.append(shlex.join(["joymigrate", *words]))
    log = at.path("serve/log.txt")
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        server = start(
            [sys.executable, "-m", "joymigrate", *words],
            cwd=at.request.project,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            ready, answer, took = ask_server(server, f"http://127.0.0.1:{words[-1]}")
        except OSError as error:
            why = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
            tail = log.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
            return StepOutcome(
                "serve",
                StepStatus.DONE,
                Text("{name} gave no answer: {why}", name=folder.name, why=why),
                {"answered": False},
                ("serve/log.txt",),
                verdict="fail",
                help=tail,
            )
        finally:
            end(server, STOP_SECONDS)
    answered = int(answer["usage"]["completion_tokens"])
    at.path("serve/answer.json").write_text(json.dumps(answer, indent=1), encoding="utf-8")
    return StepOutcome(
        "serve",
        StepStatus.DONE,
        Text(
            "{name} was ready in {ready} s and answered {tokens} token{tokens_s} in {took} s",
            name=folder.name,
            ready=f"{ready:.1f}",
            tokens=answered,
            took=f"{took:.2f}",
        ),
        {
            "answered": True,
            "ready_s": round(ready, 2),
            "tokens": answered,
            "answer_s": round(took, 3),
        },
        ("serve/answer.json", "serve/log.txt"),
        verdict="pass",
    )


def ask_server(server: subprocess.Popen[bytes], url: str) -> tuple[float, dict[str, Any], float]:
    """Seconds until it was ready, its answer, and the seconds that took. Raises `OSError`."""
    began = time.monotonic()
    while True:
        if server.poll() is not None:
            raise OSError(Text("the engine ended with {code}", code=server.returncode))
        if time.monotonic() - began > READY_SECONDS:
            raise OSError(Text("not ready after {seconds} s", seconds=f"{READY_SECONDS:.0f}"))
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as reply:
                model = json.load(reply)["data"][0]["id"]
            break
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    ready = time.monotonic() - began
    request = urllib.request.Request(
        f"{url}/v1/completions",
        data=json.dumps({"model": model, **ASKED}).encode(),
        headers={"Content-Type": "application/json"},
    )
    sent = time.monotonic()
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:
        return ready, json.load(reply), time.monotonic() - sent


def found_model(project: Path) -> Path | None:
    """The newest folder below the project with a causal model's configuration and weights."""
    folders = []
    for config in project.rglob("config.json"):
        if ".joymigrate" in config.parts or not any(config.parent.glob("*.safetensors")):
            continue
        try:
            kinds = json.loads(config.read_text(encoding="utf-8")).get("architectures") or []
        except (OSError, ValueError, AttributeError):
            continue
        if any(str(kind).endswith("ForCausalLM") for kind in kinds):
            folders.append(config.parent)
    return max(folders, key=lambda folder: (folder / "config.json").stat().st_mtime, default=None)
