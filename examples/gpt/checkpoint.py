"""Checkpoints: written beside the old one and renamed; a crash never leaves half a file."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def save(path: Path, model, optimizer, scaler, step: int) -> None:
    """Write model, optimiser, loss scale and random state."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "step": step,
        "rng": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["device_rng"] = torch.cuda.get_rng_state_all()
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


def load(path: Path, model, optimizer, scaler, device: torch.device) -> int:
    """Restore what `save` wrote; returns the step to go on with."""
    state = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(state["rng"].cpu())
    if torch.cuda.is_available() and "device_rng" in state:
        torch.cuda.set_rng_state_all([rng.cpu() for rng in state["device_rng"]])
    return state["step"]
