"""A second door to the evidence: what other gateways and servers write about their requests.

* LiteLLM's standard logging payloads, one JSON object a line: status, times, tokens, why it ended.
* vLLM's access log (uvicorn's lines), a file for each server: the status alone.

The same state machine judges them as it judges our own traffic. No question is asked of both sides
here, so that texts are not compared, and the verdict says so.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence import failures
from joymigrate.run.serve.evidence.answers import BackendReply, observe
from joymigrate.run.serve.evidence.events import (
    PAUSED,
    PRIMARY,
    PROMOTED,
    ROLLED_BACK,
    SECOND,
    Health,
    LedgerGate,
    Observed,
    RolloutOrder,
    RolloutPlan,
    RolloutTick,
    Served,
)
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.gateway.settings import GatewaySettings

# (APIServer pid=7) INFO:     10.0.0.5:41234 - "POST /v1/chat/completions HTTP/1.1" 200 OK
LINE = re.compile(
    r"(?P<who>[0-9a-fA-F.:\[\]]+):\d+ - "
    r'"(?P<method>[A-Z]+) (?P<path>\S+) HTTP/[\d.]+" (?P<status>\d{3})\b'
)
TOGETHER = 500  # rows among which the standby's share is counted
TOLD = ("suspected", PAUSED, PROMOTED, ROLLED_BACK)  # changes that say something of the standby
UNJUDGED = "unjudged"  # a client's own mistake, or back-pressure: no evidence either way


@dataclass(frozen=True, slots=True)
class AccessRow:
    """One request: whose it was, how it ended, and what can be seen of its answer."""

    upstream: str
    time: float | None
    failure: str | None  # None: fine
    kind: str = ""
    who: str = ""
    seen: Mapping[str, bool | float] | None = None


def read_log(path: Path, name: str) -> list[AccessRow]:
    """The requests of a file; `name` is the server whose log it is, where rows do not say so."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JoyError(f"cannot read the access log: {error}", where=str(path),
                       help="give a log of LiteLLM (JSON lines) or vLLM") from None  # fmt: skip
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("{"):
            try:
                made = of_litellm(json.loads(line), name)
            except (ValueError, TypeError, AttributeError) as error:
                raise JoyError(
                    f"this is no payload of LiteLLM: {error}", where=f"{path}:{number}",
                    help="log StandardLoggingPayload, one object a line",
                ) from None  # fmt: skip
            found.append(made)
        elif (match := LINE.search(line)) and match["method"] == "POST":
            failure = of_status(int(match["status"]))
            kind = match["path"].partition("?")[0]
            found.append(AccessRow(name, None, failure, kind, match["who"]))
    if not found:
        raise JoyError(
            "there is no request in this log", where=str(path),
            help="LiteLLM: JSON lines; vLLM: its access log, not switched off",
        )  # fmt: skip
    return found


def of_status(status: int) -> str | None:
    """The failure that a status means; `UNJUDGED` where the client or its haste may be at fault."""
    return failures.of_status(status) or (UNJUDGED if status >= 400 else None)


def of_litellm(said: Mapping[str, Any], name: str) -> AccessRow:
    """One StandardLoggingPayload."""
    if "status" not in said or "startTime" not in said:
        raise ValueError("it has no status and startTime")
    began, ended = seconds_of(said["startTime"]), seconds_of(said.get("endTime"))
    meta = said.get("metadata") or {}
    who = said.get("end_user") or meta.get("user_api_key_hash") or ""
    stream = "stream" if said.get("stream") else "whole"
    kind = f"{said.get('call_type') or 'call'}, {said.get('model_group') or ''}, {stream}"
    place = name or str(said.get("model_id") or said.get("api_base") or "")
    row = AccessRow(place, ended or began, None, kind, str(who))
    if said["status"] != "success":
        return replace(row, failure=failure_of(said))
    if began is None or ended is None:
        return row
    first = seconds_of(said.get("completionStartTime")) if said.get("stream") else None
    choice, text = first_choice(said.get("response")), None
    message = choice.get("message") or {}
    text = message.get("content") if isinstance(message, dict) else None
    answer = BackendReply(
        text=text or "", finish=choice.get("finish_reason"), seconds=ended - began,
        first_byte_seconds=first - began if first is not None else None,
    )  # fmt: skip
    tokens = float(said.get("completion_tokens") or 0)
    seen = observe(answer, wants_json=False) | {"tokens": tokens}
    if not text:  # left out of the log, or a tool's call: nothing to see in it
        seen = {key: value for key, value in seen.items() if not is_mark(key)}
    return replace(row, seen=seen)


def is_mark(name: str) -> bool:
    """Whether something seen of an answer is read in its text."""
    return not name.startswith(("ends by", "tokens", "seconds"))


def first_choice(response: Any) -> dict[str, Any]:
    """The first choice of a logged answer; empty where the log has none."""
    choices = response.get("choices") if isinstance(response, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def failure_of(said: Mapping[str, Any]) -> str:
    """What a failed call of LiteLLM is evidence of."""
    about = said.get("error_information") or {}
    code, name = str(about.get("error_code") or ""), str(about.get("error_class") or "")
    if "Timeout" in name or code == "408":
        return failures.FIRST_BYTE
    if "Connection" in name:
        return failures.CONNECT
    if code.isdigit() and int(code) >= 400:
        return of_status(int(code)) or UNJUDGED
    return failures.ERROR_OBJECT


def seconds_of(value: Any) -> float | None:
    """A time of LiteLLM: seconds since the epoch, or ISO 8601."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    return None


def judge_logs(
    rows: Sequence[AccessRow], standby: str, settings: GatewaySettings | None
) -> dict[str, Any]:
    """What the rollout's state machine says about the standby, from these requests of both sides.

    The plan's times count where the rows have times; else a request is a second.
    """
    plan = settings.plan if settings is not None else RolloutPlan()
    rollout = Rollout(replace(plan, start="manual", min_step_pairs=0),
                      settings.rule if settings is not None else Rollout().make_rule)  # fmt: skip
    rows = interleave(rows)
    names = sorted({row.upstream for row in rows})
    if len(names) != 2 or standby not in names:
        raise JoyError(f"the logs are of {', '.join(names)}; the standby is '{standby}'",
                       help="name two servers' logs as NAME=FILE, and --standby NAME")  # fmt: skip
    began = rows[0].time or 0.0
    for event in (LedgerGate(began, True, "read from logs"), Health(began, SECOND, True),
                  RolloutOrder(began, "resume")):  # fmt: skip
        rollout.handle(event)
    unjudged = 0
    for number, (row, share) in enumerate(zip(rows, count_shares(rows, standby), strict=True)):
        now = row.time if row.time is not None else began + number
        role = SECOND if row.upstream == standby else PRIMARY
        if row.failure == UNJUDGED:
            unjudged += 1
            continue
        rollout.handle(Served(now, role, row.failure, 1, row.upstream, who=row.who))
        if row.seen is not None:
            rollout.handle(Observed(now, role, share, row.kind, row.seen, row.who))
        rollout.handle(RolloutTick(now))
    return {
        "state": rollout.state,
        "requests": {standby: rollout.total.requests, "primary": rollout.primary.requests},
        "failures": {standby: rollout.total.failures, "primary": rollout.primary.failures},
        "upper_bound": rollout.upper_bound,
        "unjudged": unjudged,
        "waits_for": rollout.missing(now) if rollout.state == "ramping" else "",
        "reasons": [change.text for change in rollout.changes if change.kind in TOLD],
        "covers": "failures" + (", ends, lengths and times" if any(row.seen for row in rows)
                                else "") + "; texts are not compared",
    }  # fmt: skip


def interleave(rows: Sequence[AccessRow]) -> list[AccessRow]:
    """By time; rows without one are mixed evenly, each server's in their order."""
    if all(row.time is not None for row in rows):
        return sorted(rows, key=lambda row: row.time or 0.0)
    counts: Counter[str] = Counter()
    placed = []
    totals = Counter(row.upstream for row in rows)
    for row in rows:
        counts[row.upstream] += 1
        placed.append((counts[row.upstream] / totals[row.upstream], row))
    return [row for _, row in sorted(placed, key=lambda pair: pair[0])]


def count_shares(rows: Sequence[AccessRow], standby: str) -> Iterator[float]:
    """The standby's share among the rows around each row."""
    for start in range(0, len(rows), TOGETHER):
        block = rows[start : start + TOGETHER]
        share = sum(row.upstream == standby for row in block) / len(block)
        yield from [share] * len(block)
