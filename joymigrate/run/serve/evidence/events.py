"""What a rollout is made of: its plan, the events that it takes, the changes that it makes.

Times are seconds on the caller's clock, rates are shares, weights percent of the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joymigrate.run.serve.evidence.aspects import TOLERABLE
from joymigrate.schema import setting

STANDBY, RAMPING, PROMOTED = "standby", "ramping", "promoted"
ROLLED_BACK, PAUSED = "rolled_back", "paused"
PRIMARY, SECOND = "primary", "standby"  # the roles of the two backends
LIMIT = 0.001  # the share of requests that may fail, where nobody says another
ORDERS = ("resume", "pause", "rollback", "promote")


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """How a rollout goes. Times in seconds, `limit` a share, `steps` percent of the traffic."""

    steps: tuple[float, ...] = setting(
        (1, 5, 20, 50, 100), "rising percentages of the traffic", above=0, most=100
    )
    start: str = setting("auto", "whether it starts by itself", choices=("auto", "manual"))
    min_step_seconds: float = setting(600.0, "a step lasts so long", least=0)
    min_step_requests: int = setting(5, "and has so many requests", least=0)
    max_step_seconds: float = setting(
        604_800.0, "a step without enough evidence is inconclusive after this", least=0
    )
    limit: float = setting(LIMIT, "the share of failures that is too much", above=0, most=0.99)
    confidence: float = setting(0.95, "of the proof", least=0)
    proof_from: float = setting(
        100.0, "the first weight that needs the bound at or below the limit", least=0
    )
    down_seconds: float = setting(
        30.0, "a standby that fails its health checks for so long is out", least=0
    )
    suspect_seconds: float = setting(
        30.0, "how long the primary is looked at when both may be failing", least=0
    )
    min_step_pairs: int = setting(
        10, "answers of both backends compared at each step; 0 is none", least=0
    )
    pair_percent: float = setting(1.0, "of the requests, once a step has its pairs", least=0)
    max_different: float = setting(0.1, "share of compared texts that may differ early", least=0)
    early_characters: int = setting(32, "what early means", least=0)
    max_slowdown: float = setting(
        3.0, "the standby's time over the primary's, in most pairs; 0 is any", least=0
    )
    unjudged: tuple[str, ...] = setting(
        (), "aspects of compared answers that do not count", choices=TOLERABLE
    )


@dataclass(frozen=True, slots=True)
class Served:
    """`count` equal outcomes of one backend. `failure` names what went wrong, None for success."""

    time: float
    role: str
    failure: str | None = None
    count: int = 1
    instance: str = ""
    shadow: bool = False
    who: str = ""  # the client, where it says so


@dataclass(frozen=True, slots=True)
class AnswersCompared:
    """Both backends answered the same question; see `answers.compare` for `told`.

    Not `paired`: a client's request on which one refused and the other answered (those on which
    they agree are not told), or an old question asked again. `changed`: by role, whether that one
    got another answer than before.
    """

    time: float
    told: Mapping[str, bool] = field(default_factory=dict)
    paired: bool = True
    changed: Mapping[str, bool] = field(default_factory=dict)
    kind: str = ""  # of the question, see `kinds`


@dataclass(frozen=True, slots=True)
class Observed:
    """What can be seen of one live answer, by name. `share`: of the traffic that the standby had
    when the answer's arm was drawn, 0 to 1."""

    time: float
    role: str
    share: float
    kind: str
    seen: Mapping[str, bool | float] = field(default_factory=dict)
    who: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """A backend's health checks changed their mind."""

    time: float
    role: str
    up: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RolloutTick:
    """Time passed."""

    time: float


@dataclass(frozen=True, slots=True)
class LedgerGate:
    """Whether the ledger lets the standby be ramped, and why."""

    time: float
    open: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RolloutOrder:
    """What an operator asked for: one of `ORDERS`."""

    time: float
    what: str
    by: str = "operator"


Event = Served | AnswersCompared | Observed | Health | RolloutTick | LedgerGate | RolloutOrder


@dataclass(frozen=True, slots=True)
class RolloutChange:
    """One line of the rollout's history. `weight` is the standby's percentage afterwards."""

    time: float
    kind: str  # the new state, "step", "health", "gate" or "refused"
    text: str
    state: str
    weight: float


@dataclass(slots=True)
class RequestTally:
    """Requests and failures of one backend."""

    requests: int = 0
    failures: int = 0

    def add(self, event: Served) -> None:
        self.requests += event.count
        self.failures += event.count if event.failure else 0
