"""May this job train on this chip? Only with a passing verdict, or when the user says so."""

from __future__ import annotations

from pathlib import Path

from joymigrate.chips import get
from joymigrate.device import Device
from joymigrate.errors import JoyError
from joymigrate.ledger import Ledger, Subject
from joymigrate.run.train.job import Job


def refusal(job: Job, device: Device, project: Path) -> str | None:
    """Why not; None for the CPU, for the origin, and behind a pass of this chip."""
    if device.is_cpu or device.chip is None or get(device.chip).origin:
        return None
    standing = Ledger.of(project).verdict(Subject(job.name), device.chip)
    return standing.refusal(rehearsal=device.rehearsal)


def check(job: Job, device: Device, project: Path, *, unverified: bool) -> str | None:
    """Refuse a job without a verdict; with `unverified`, return the reason as a note."""
    reason = refusal(job, device, project)
    if reason is None or unverified:
        return reason
    raise JoyError(
        reason,
        where=str(project),
        help=f"verify it on {device.chip} first (joymigrate verify replay … --subject {job.name}), "
        "or train it all the same with --unverified",
    )
