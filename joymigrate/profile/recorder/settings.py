"""How a recording is set up: made by the command, read by every process of the program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from joymigrate import settings

# Names the folder of the running recording; set in every process that takes part.
ENVIRONMENT = "JOYMIGRATE_RECORD"
HOOK = "joymigrate.profile.recorder.start:start"
SUFFIXES = (".jsonl.gz", ".jsonl")


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """One recording: `warmup` steps, `steps` timed ones, then one for exact types and values."""

    session: Path  # folder where processes settle who writes which file
    out: Path  # NAME.jsonl or NAME.jsonl.gz; the Chrome trace lies beside it
    steps: int = 3
    warmup: int = 1
    timing: bool = True  # off under a rehearsal, whose times mean nothing
    stack: bool = False  # Python stacks in the Chrome trace
    chip: str | None = None
    rehearsal: bool = False
    device: str | None = None  # the device type the chip's tensors have
    variables: tuple[str, ...] = ()  # environment variables worth keeping
    hidden: tuple[str, ...] = ()  # packages of chips whose driver this machine lacks

    def save(self) -> None:
        """Write them into the session folder."""
        settings.write(self, self.session / settings.FILE)


def read_settings() -> RecorderSettings | None:
    """The settings of the recording that this process takes part in; None outside of one."""
    return settings.of_session(RecorderSettings, ENVIRONMENT, "recording", "profile record")


def stem(out: Path) -> str:
    """The path without the suffix of a trace: `runs/gpt` of `runs/gpt.jsonl.gz`."""
    text = str(out)
    for suffix in SUFFIXES:
        if text.endswith(suffix):
            return text[: -len(suffix)]
    return text


def trace_files(
    out: Path, rank: int | None = None, process: int | None = None
) -> tuple[Path, Path]:
    """The JSONL and the Chrome trace of one process of the program."""
    name = stem(out)
    suffix = str(out)[len(name) :] or ".jsonl"
    part = f".rank-{rank}" if rank is not None else f".process-{process}" if process else ""
    return Path(f"{name}{part}{suffix}"), Path(f"{name}{part}.trace.json.gz")
