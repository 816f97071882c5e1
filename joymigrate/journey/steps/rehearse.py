"""Run the program on the chip; where there is none, on the simulated one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.journey.model import Outcome, Status
from joymigrate.journey.travelling import Travelling


def run(at: Travelling) -> Outcome:
    """What breaks, what falls back, how much memory."""
    if at.chip_here:
        return on_the_chip(at)
    result = str(at.path("rehearse/rehearse.json"))
    words = ("rehearse", "--to", at.request.chip, "--format", "json", "-o", result, "--")
    done = at.joymigrate("rehearse/log.txt", *words, *at.request.entry, ok=range(256))
    found = at.load("rehearse/rehearse.json")
    peak = max(found["peak_memory_bytes"].values(), default=0)
    figures = {
        "exit_code": found["exit_code"],
        "fallbacks": len(found["fallbacks"]),
        "fallback_ops": [one["op"] for one in found["fallbacks"]],
        "traps": len(found["traps"]),
        "peak_bytes": peak,
        "checked_by": found["checked_by"],
        "package": found["package"],
    }
    held = refusal(at, found, peak)
    summary = (
        f"ran to its end on a simulated {found['soc']}; {len(found['fallbacks'])} operators fell "
        f"back to the CPU, peak {peak / 2**20:.1f} MiB"
    )
    return Outcome(
        "rehearse",
        Status.STOPPED if held else Status.DONE,
        held or summary,
        figures,
        ("rehearse/rehearse.json", "rehearse/log.txt"),
        verdict="fail" if held else "pass",
        help=advice(found, done.tail()) if held else "",
    )


def refusal(at: Travelling, found: Mapping[str, Any], peak: int) -> str | None:
    """Which gate holds the journey, as a sentence."""
    gates = at.gates
    if gates.rehearse and found["exit_code"] != 0:
        return f"the program ended with exit code {found['exit_code']} on the simulated chip"
    if gates.fallbacks is not None and len(found["fallbacks"]) > gates.fallbacks:
        return (
            f"{len(found['fallbacks'])} operators run on the CPU; the gate allows {gates.fallbacks}"
        )
    if gates.memory_gib is not None and peak > gates.memory_gib * 2**30:
        return f"{peak / 2**30:.2f} GiB on one device; the gate allows {gates.memory_gib:g} GiB"
    return None


def advice(found: Mapping[str, Any], tail: str) -> str:
    """The traps with their remedies, else what the program said last."""
    traps = [
        f"{one.get('where') or '?'}: {one.get('message') or one.get('name')}"
        + (f"\n  help: {one['remedy']}" if one.get("remedy") else "")
        for one in found["traps"]
    ]
    return "\n".join(traps) or tail


def on_the_chip(at: Travelling) -> Outcome:
    """The program itself, on the chip of this machine."""
    words = ("run", "--to", at.request.chip, "--", *at.request.entry)
    done = at.joymigrate("rehearse/log.txt", *words, ok=range(256))
    held = at.gates.rehearse and done.code != 0
    return Outcome(
        "rehearse",
        Status.STOPPED if held else Status.DONE,
        f"the program ended with exit code {done.code} on the chip",
        {"exit_code": done.code},
        ("rehearse/log.txt",),
        verdict="fail" if held else "pass",
        help=done.tail() if held else "",
    )
