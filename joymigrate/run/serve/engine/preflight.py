"""What the preflight finds: one finding per check, the plan of the memory, and the whole report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError
from joymigrate.evidence import count_grades
from joymigrate.run.serve.engine.types import EngineOptions

if TYPE_CHECKING:
    from joymigrate.chips import Chip

SCHEMA = "joymigrate.preflight/1"
OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class StartFinding:
    """One check: what was found, and what to do when it is not good.

    `grade`: how well it is known, of what says something about the chip (joymigrate.evidence)."""

    name: str
    status: str
    found: str
    remedy: str = ""
    grade: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A plan: bytes per card, blocks of the KV cache, and how long texts may be at once.

    `states`: what all running texts keep in layers that hold a state, `state_per_text` each."""

    total: int | None
    weights: int
    runtime: int
    kv_per_token: int
    block_size: int
    blocks: int | None
    tokens: int | None
    max_model_len: int
    state_per_text: int = 0
    states: int = 0

    def to_json(self) -> dict[str, Any]:
        """As in the report."""
        return {
            "total_bytes": self.total,
            "weight_bytes": self.weights,
            "runtime_bytes": self.runtime,
            "kv_bytes_per_token": self.kv_per_token,
            "state_bytes_per_text": self.state_per_text,
            "state_bytes": self.states,
            "block_size": self.block_size,
            "kv_blocks": self.blocks,
            "kv_tokens": self.tokens,
            "max_model_len": self.max_model_len,
            "texts_of_full_length": None
            if self.tokens is None
            else self.tokens // self.max_model_len,
        }


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found about one start."""

    model: str
    chip: str | None
    findings: tuple[StartFinding, ...]
    memory: MemoryPlan | None

    def __bool__(self) -> bool:
        return all(one.status != FAIL for one in self.findings)

    def grades(self) -> dict[str, int]:
        """How many statements about the chip have each grade."""
        return count_grades(one.grade for one in self.findings if one.grade)

    def to_json(self) -> dict[str, Any]:
        """The report."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "chip": self.chip,
            "ready": bool(self),
            "grades": self.grades(),
            "checks": [asdict(one) for one in self.findings],
            "memory": self.memory.to_json() if self.memory else None,
        }


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The start that is checked. `chip` None: the CPU; `sku` names the model of the card."""

    folder: Path
    options: EngineOptions
    chip: Chip | None = None
    sku: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    template: Path | None = None
    generation: str = "auto"
    override: str = ""


def told_by(error: JoyError) -> str:
    """An error in one line."""
    return f"{error.what} ({error.where})" if error.where else error.what
