"""What two backends said to one question, and whether that is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joymigrate.run.serve.evidence.answers import (
    BackendReply,
)
from joymigrate.run.serve.gateway.calls import GatewayCall


@dataclass(frozen=True, slots=True)
class ShadowPair:
    """One question, two answers. `divergence` counts characters from 0."""

    theirs: BackendReply
    ours: BackendReply
    divergence: int | None

    @property
    def same_text(self) -> bool:
        return self.theirs.text == self.ours.text


@dataclass(frozen=True, slots=True)
class PastQuestion:
    """A short question with the answers it got."""

    call: GatewayCall
    answers: Mapping[str, BackendReply]  # by role
