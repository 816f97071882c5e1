"""Generated text of two models: forced on the baseline's tokens, and free.

Forced: the target is given the baseline's tokens and asked at every position what it would have
said; errors don't accumulate there. Free: how many tokens both write alike from the start. Where
only two free runs are known, the positions before they part are forced by nature.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.verify.model import (
    Difference,
    FirstDivergence,
    Outcome,
    RecordCoverage,
    RecordStatus,
    Verdict,
    number,
    one_stage,
    place_of,
    verdict_json,
)
from joymigrate.verify.tolerance import Tolerance

STAGE = "S7"
MOST_POSITIONS = 512
MOST_EXAMPLES = 50
FLOOR = 1e-12

Top = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What one side said at given places: log-probability of the token that stands there, whether
    it was its own first choice, and its most probable tokens where they are known."""

    logprobs: Sequence[float] = ()
    first_choice: Sequence[bool] = ()
    top: Sequence[Top] = ()


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    """One prompt's outcome on one side. `forced` is about the baseline's tokens."""

    id: str
    tokens: tuple[str, ...]
    said: TokenScores = field(default_factory=TokenScores)
    forced: TokenScores | None = None
    prompt: str | None = None
    prompt_tokens: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class ForcedFigures:
    """Sums over all forced positions, and the lengths of common prefixes."""

    positions: int = 0
    agreeing: int = 0
    kl: float = 0.0
    kl_positions: int = 0
    logprob: float = 0.0
    logprob_positions: int = 0
    logprob_max: float = 0.0
    prefixes: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    equal: int = 0
    first_token: list[str] = field(default_factory=list)  # ids that part at once, beyond a tie
    ties: int = 0
    by_position: dict[int, list[float]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def top1(self) -> float:
        """Share of positions where the target's first choice is the baseline's token."""
        return self.agreeing / self.positions if self.positions else math.nan

    @property
    def mean_kl(self) -> float:
        """Mean Kullback-Leibler divergence in nats, over the tokens that the baseline listed."""
        return self.kl / self.kl_positions if self.kl_positions else math.nan

    @property
    def mean_logprob(self) -> float:
        """Mean absolute difference of the token's log-probability."""
        return self.logprob / self.logprob_positions if self.logprob_positions else math.nan


def read_lines(path: Path) -> dict[str, PromptOutcome]:
    """Outcomes by id; `JoyError` for other files."""
    found: dict[str, PromptOutcome] = {}
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number_, raw in enumerate(file, 1):
                if raw.strip():
                    line = parse_line(raw, f"{path}:{number_}")
                    if line.id in found:
                        raise JoyError(
                            f"the id '{line.id}' occurs twice", where=f"{path}:{number_}"
                        )
                    found[line.id] = line
    except OSError as error:
        raise JoyError(f"cannot read: {error.strerror}", where=str(path)) from None
    if not found:
        raise JoyError("there is no generated text in this file", where=str(path))
    return found


def parse_line(raw: bytes, where: str) -> PromptOutcome:
    """One line."""
    shape = '{"id": "1", "tokens": [5, 17], "logprobs": [-0.1, -0.4]}'
    try:
        value = json.loads(raw)
        tokens = value["tokens"]
        forced = value.get("forced")
        whole = all(isinstance(token, int) for token in tokens)
        return PromptOutcome(
            str(value["id"]),
            tuple(map(str, tokens)),
            said_of(value, len(tokens)),
            said_of(forced, len(tokens)) if forced else None,
            value.get("prompt"),
            tuple(value.get("prompt_tokens") or ()),
            tuple(tokens) if whole else (),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"not a line of generated text: {type(error).__name__} {error}"
        raise JoyError(what, where=where, help=shape) from None


def said_of(value: Mapping[str, Any], length: int) -> TokenScores:
    """Log-probabilities and choices of one object; lists as long as the tokens, or absent."""
    logprobs = [math.nan if v is None else float(v) for v in value.get("logprobs") or ()]
    top = [top_of(item) for item in value.get("top_logprobs") or ()]
    choices = [bool(v) for v in value.get("first_choice") or ()]
    for name, items in (("logprobs", logprobs), ("top_logprobs", top)):
        if items and len(items) < length and "tokens" in value:
            raise ValueError(f"{name} has {len(items)} entries for {length} tokens")
    return TokenScores(logprobs, choices, top)


def top_of(item: Any) -> dict[str, float]:
    """`{"token": logprob}` or `[[token, logprob], …]`."""
    pairs = item.items() if isinstance(item, Mapping) else item or ()
    return {str(token): float(logprob) for token, logprob in pairs}


def measure(
    baseline: Mapping[str, PromptOutcome], target: Mapping[str, PromptOutcome], tie: float
) -> ForcedFigures:
    """All figures over the prompts that both sides have. `tie` is the gap in log-probability
    below which two tokens are equally good."""
    figures = ForcedFigures()
    for name, base in baseline.items():
        if name in target:
            add(figures, base, target[name], tie)
    figures.examples.sort(key=lambda e: e["prefix"])
    del figures.examples[MOST_EXAMPLES:]
    return figures


def add(figures: ForcedFigures, base: PromptOutcome, target: PromptOutcome, tie: float) -> None:
    """Count one prompt."""
    common = prefix(base.tokens, target.tokens) if target.tokens else len(base.tokens)
    if target.tokens:
        figures.prefixes.append(common)
        figures.lengths.append(len(base.tokens))
        parted = common < min(len(base.tokens), len(target.tokens))
        figures.equal += base.tokens == target.tokens
        if parted:
            figures.examples.append(example(base, target, common))
            near = is_tie(base, target.tokens[common], common, tie)
            figures.ties += near
            if common == 0 and not near:
                figures.first_token.append(base.id)
    if target.forced is not None:
        add_positions(figures, base, target.forced, len(base.tokens), chosen=None)
        return
    # Up to and including the first difference both saw the same context.
    length = min(common + 1, len(base.tokens), len(target.tokens))
    said = target.said
    chosen = [base.tokens[i] == target.tokens[i] for i in range(length)]
    add_positions(figures, base, said, length, chosen)


def add_positions(
    figures: ForcedFigures,
    base: PromptOutcome,
    said: TokenScores,
    length: int,
    chosen: Sequence[bool] | None,
) -> None:
    """Count the positions of one prompt. `chosen` None: as the forced side says."""
    flags = said.first_choice if chosen is None else chosen
    for place in range(length):
        if place < len(flags):
            figures.positions += 1
            figures.agreeing += bool(flags[place])
        same_token = chosen is None or chosen[place]
        if same_token and place < len(base.said.logprobs) and place < len(said.logprobs):
            a, b = base.said.logprobs[place], said.logprobs[place]
            if math.isfinite(a) and math.isfinite(b):
                figures.logprob += abs(a - b)
                figures.logprob_positions += 1
                figures.logprob_max = max(figures.logprob_max, abs(a - b))
                if place < MOST_POSITIONS:
                    figures.by_position.setdefault(place, []).append(abs(a - b))
            elif math.isnan(b) and math.isfinite(a):
                figures.logprob_max = math.inf
        if place < len(base.said.top) and place < len(said.top):
            value = divergence_of(base.said.top[place], said.top[place])
            if value is not None:
                figures.kl += value
                figures.kl_positions += 1


def divergence_of(p: Top, q: Top) -> float | None:
    """KL(p ‖ q) over the tokens listed by both, everything else as one outcome: a lower bound of
    the whole. None where they have no token in common."""
    common = p.keys() & q.keys()
    if not common:
        return None
    total, rest_p, rest_q = 0.0, 1.0, 1.0
    for token in common:
        a, b = math.exp(p[token]), math.exp(q[token])
        total += a * (p[token] - q[token])
        rest_p -= a
        rest_q -= b
    if rest_p > 1e-9:
        total += rest_p * math.log(rest_p / max(rest_q, 1e-9))
    return max(0.0, total)


def is_tie(base: PromptOutcome, other: str, place: int, tie: float) -> bool:
    """Whether the baseline itself held the other token for as good, within `tie`."""
    if place >= len(base.said.top):
        return False
    top = base.said.top[place]
    mine = top.get(base.tokens[place])
    return mine is not None and other in top and mine - top[other] <= tie


def prefix(a: Sequence[str], b: Sequence[str]) -> int:
    """Number of equal tokens from the start."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def example(base: PromptOutcome, target: PromptOutcome, common: int) -> dict[str, Any]:
    """Where one prompt's outputs part."""
    return {
        "id": base.id,
        "prefix": common,
        "baseline": base.tokens[common],
        "target": target.tokens[common],
    }


def judge(
    figures: ForcedFigures, noise: ForcedFigures | None, limits: Tolerance
) -> tuple[Outcome, list[Difference], list[str]]:
    """Verdict, one record per figure, and reasons."""
    reasons: list[str] = []
    records = []
    values, own = distances(figures), distances(noise)
    names = {
        "top1": "share of tokens that are not the target's first choice",
        "kl": "mean KL divergence (nats)",
        "logprob": "mean |difference of log-probabilities|",
    }
    for key, value in values.items():
        allowed, warn = limits.limit(STAGE, f"{key}_pass"), limits.limit(STAGE, f"{key}_warn")
        if key == "top1":
            allowed, warn = 1 - allowed, 1 - warn
        status, limit = status_of(value, allowed, warn, own[key], limits.limit(STAGE, "envelope"))
        shown = None if math.isnan(value) else value
        known = None if math.isnan(own[key]) else own[key]
        records.append(record(names[key], shown, limit, status, known))
        if status is RecordStatus.FAIL:
            reasons.append(
                Text(
                    "{name} {value}, limit {limit}",
                    name=names[key],
                    value=f"{value:.3g}",
                    limit=f"{limit:.3g}",
                )
            )
    if math.isinf(figures.logprob_max):
        reasons.append("log-probabilities of the target are not finite")
    if figures.first_token:
        ids = ", ".join(figures.first_token[:5])
        reasons.append(
            Text(
                "{number} outputs part at the first token ({ids})",
                number=len(figures.first_token),
                ids=ids,
            )
        )
        why = "weights, template or tokenizer differ, or a kernel is wrong"
        number_ = float(len(figures.first_token))
        name = "outputs that part at the first token"
        records.append(record(name, number_, 0.0, RecordStatus.FAIL, reason=why))
    if reasons:
        return Outcome.FAIL, records, reasons
    if not figures.positions:
        return Outcome.INCONCLUSIVE, records, ["there is no position to compare"]
    return Outcome.PASS, records, []


def record(
    metric: str,
    value: float | None,
    limit: float,
    status: RecordStatus,
    own: float | None = None,
    reason: str | None = None,
) -> Difference:
    """One figure as a record."""
    return Difference(
        "generation",
        0,
        None,
        None,
        metric,
        value,
        limit,
        status,
        STAGE,
        baseline_error=own,
        reason=reason,
    )


def distances(figures: ForcedFigures | None) -> dict[str, float]:
    """The judged figures, 0 for equal sides; NaN for what is not known."""
    if figures is None:
        return {"top1": math.nan, "kl": math.nan, "logprob": math.nan}
    return {
        "top1": 1 - figures.top1,
        "kl": figures.mean_kl,
        "logprob": figures.mean_logprob,
    }


def status_of(
    value: float, allowed: float, warn: float, own: float, factor: float
) -> tuple[RecordStatus, float]:
    """(status, limit): beside the baseline's own noise where that is known."""
    if math.isnan(value):
        return RecordStatus.UNCOMPARED, allowed
    if own > 0:  # not NaN: it is known
        if value <= factor * own:
            return RecordStatus.PASS, factor * own
        return (
            (RecordStatus.WARN, factor * own)
            if value <= allowed
            else (RecordStatus.FAIL, max(allowed, factor * own))
        )
    if value <= allowed:
        return RecordStatus.PASS, allowed
    return (RecordStatus.WARN, allowed) if value <= warn else (RecordStatus.FAIL, warn)


def verdict(
    baseline: Mapping[str, PromptOutcome],
    target: Mapping[str, PromptOutcome],
    limits: Tolerance,
    envelope: Mapping[str, PromptOutcome] | None = None,
) -> tuple[Verdict, dict[str, Any]]:
    """The verdict of stage S7 and its document."""
    tie = limits.limit(STAGE, "logprob_pass")
    figures = measure(baseline, target, tie)
    noise = None if envelope is None else measure(baseline, envelope, tie)
    if noise is not None:
        own = set(noise.first_token)
        figures.first_token = [name for name in figures.first_token if name not in own]
    outcome, records, reasons = judge(figures, noise, limits)
    paired = len(baseline.keys() & target.keys())
    total = len(baseline.keys() | target.keys())
    missing = tuple(sorted(baseline.keys() ^ target.keys())[:50])
    coverage = RecordCoverage(paired / total, paired, total, limits.module_coverage, missing)
    if outcome is Outcome.PASS and not coverage.enough:
        outcome = Outcome.INCONCLUSIVE
        reasons.append(
            Text("only {paired} of {total} prompts are in both files", paired=paired, total=total)
        )
    first = next((r for r in reversed(records) if r.status is RecordStatus.FAIL), None)
    place = parting(first, figures)
    found = one_stage(STAGE, outcome, coverage, records, place, reasons)
    return found, {**verdict_json(found), "generation": as_json(figures, noise, paired)}


def parting(first: Difference | None, figures: ForcedFigures) -> FirstDivergence:
    """Where the outputs part: the metric, and the earliest example."""
    if first is None:
        first = Difference("generation", metric="log-probability", value=math.inf, stage=STAGE)
    where = next(iter(figures.examples), None)
    if where is None:
        return place_of(first, cause=first.reason)
    text = Text("prompt {id} after {prefix} tokens", id=where["id"], prefix=where["prefix"])
    return place_of(first, cause=first.reason, evidence=text)


def as_json(figures: ForcedFigures, noise: ForcedFigures | None, prompts: int) -> dict[str, Any]:
    """The object `generation`."""
    free = None
    if figures.prefixes:
        free = {
            "prompts": len(figures.prefixes),
            "equal": figures.equal,
            "prefix_mean": sum(figures.prefixes) / len(figures.prefixes),
            "prefix_min": min(figures.prefixes),
            "length_mean": sum(figures.lengths) / len(figures.lengths),
            "first_token": len(figures.first_token),
            "ties": figures.ties,
        }
    return {
        "prompts": prompts,
        "forced": forced_json(figures) if figures.positions else None,
        "free": free,
        "envelope": forced_json(noise) if noise is not None else None,
        "by_position": list(positions(figures)),
        "examples": figures.examples,
    }


def forced_json(figures: ForcedFigures) -> dict[str, Any]:
    """Figures at forced positions."""
    return {
        "tokens": figures.positions,
        "top1": number(figures.top1),
        "kl": number(figures.mean_kl) if figures.kl_positions else None,
        "logprob": number(figures.mean_logprob) if figures.logprob_positions else None,
        "logprob_max": number(figures.logprob_max),
    }


def positions(figures: ForcedFigures) -> Iterator[dict[str, float]]:
    """Mean distance by place in the text."""
    for place, values in sorted(figures.by_position.items()):
        yield {"position": place, "logprob": sum(values) / len(values)}
