"""What a model is fed with: B rows, F fields, D columns, G numbers, L events, T targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class InputShape:
    """The inputs of a model. `events` are the lengths of its sequences, `codes` the sizes of the
    levels of semantic ids."""

    fields: int
    numbers: int
    dim: int
    events: tuple[int, ...] = ()
    targets: int = 1
    codes: tuple[int, ...] = ()

    @property
    def flat(self) -> int:
        """Columns of all fields and numbers."""
        return self.fields * self.dim + self.numbers


@dataclass(frozen=True, slots=True)
class RowInputs:
    """Rows that were looked up.

    fields_BFD; numbers_BG; linear_B: the sum of the fields' first-order weights (None for models
    without). Per sequence: events_BLD padded behind the last event, mask_BL true at events, and
    target_BD, the row of the candidate that the sequence is compared with; where the schema has
    them, times_BL in seconds, and asked_B, when the row's item was asked for; where the job has
    them, semantic ids of events [B, L, K] and candidate [B, K], -1 where an item has none.
    """

    fields_BFD: Tensor
    numbers_BG: Tensor
    linear_B: Tensor | None = None
    events: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()
    times: tuple[Tensor | None, ...] = ()
    codes: tuple[tuple[Tensor, Tensor], ...] = ()
    asked_B: Tensor | None = None

    def times_of(self, sequence: int) -> Tensor | None:
        """The times of a sequence's events, where they are known."""
        return self.times[sequence] if self.times else None

    def codes_of(self, sequence: int) -> tuple[Tensor, Tensor]:
        """The semantic ids of a sequence's events and of its candidate."""
        return self.codes[sequence]

    def flat_BX(self) -> Tensor:
        """All fields and numbers side by side."""
        import torch

        return torch.cat([self.fields_BFD.flatten(1), self.numbers_BG], 1)


def need_events(shape: InputShape, name: str) -> None:
    """A model over behaviour needs a sequence."""
    from joymigrate.errors import JoyError

    if not shape.events:
        raise JoyError(
            f"'{name}' needs a feature of type sequence",
            where="model.from_config.model_type",
            help="add one to the schema, or take deepfm, dcn or dlrm",
        )


Sizes = dict[str, Any]
