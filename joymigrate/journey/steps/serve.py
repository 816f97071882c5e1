"""Serve the model of the project and ask it something."""

from __future__ import annotations

import json
from pathlib import Path

from joymigrate.journey.model import Outcome, Status
from joymigrate.journey.travelling import StepFailed, Travelling


def run(at: Travelling) -> Outcome:
    """Start the engine on a folder of weights, send one request, stop it."""
    folder = at.request.serve or found_model(at.request.project)
    if folder is None:
        return Outcome("serve", Status.SKIPPED, "no folder with a language model's weights")
    words = ["serve", str(folder), "--smoke", "--to", at.request.chip, "--unverified"]
    done = at.joymigrate("serve/log.txt", *words, ok=range(256))
    held = at.gates.serve and done.code != 0
    if held and not done.tail():
        raise StepFailed(f"the engine ended with {done.code}", "")
    return Outcome(
        "serve",
        Status.STOPPED if held else Status.DONE,
        f"{folder.name} answered" if done.code == 0 else f"{folder.name} gave no answer",
        {"exit_code": done.code, "model": str(folder)},
        ("serve/log.txt",),
        verdict="pass" if done.code == 0 else "fail",
        help=done.tail() if held else "",
    )


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
