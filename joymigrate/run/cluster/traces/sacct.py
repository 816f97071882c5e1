"""What Slurm's accounting says: `sacct -a -X -P -o JobID,Account,Submit,Start,End,State,ReqTRES`.

Needed columns: JobID, Submit, Start, End, State, and ReqTRES or AllocTRES. The first of Account,
QOS and Partition in the header is a job's queue; NNodes, TimelimitRaw and Eligible are read where
they are there. Times are seconds since 1970 (`SLURM_TIME_FORMAT=%s`), or ISO; those without a zone
are taken as UTC, so that a job over a change of summer time is an hour off.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.cluster import kinds
from joymigrate.run.cluster.events import Cancelled
from joymigrate.run.cluster.jobs import DEFAULT_QUEUE, GangJob, PodGroup
from joymigrate.run.cluster.traces import Arrival, JobTrace

NEEDED = ("JobID", "Submit", "Start", "End", "State")
TRES = ("ReqTRES", "AllocTRES")
TEAMS = ("Account", "QOS", "Partition")
UNSET = ("", "None", "Unknown", "N/A", "INVALID")
GRES = re.compile(r"(?:^|,)gres/([^:=,]+)(?::([^=,]+))?=(\d+)")
LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")  # [days-][hours:]minutes:seconds
OFFSET = re.compile(r"(:\d+[+-]\d\d)(\d\d)$")  # Python 3.10 reads +02:00 only
ASK = (
    "SLURM_TIME_FORMAT=%s sacct -a -X -P "
    "-o JobID,Account,Submit,Eligible,Start,End,State,NNodes,TimelimitRaw,ReqTRES"
)


def read(path: Path) -> JobTrace:
    """Jobs by when they could start first; the wait is from there to their start."""
    lines = path.read_text("utf-8-sig").splitlines()
    heads = [head.strip() for head in (lines[0] if lines else "").split("|")]
    if not set(NEEDED) <= set(heads) or not set(TRES) & set(heads):
        missing = [name for name in NEEDED if name not in heads] or ["ReqTRES"]
        raise JoyError(f"no column {', '.join(missing)}", where=f"{path}:1", help=ASK)
    team = next((head for head in heads if head in TEAMS), "")
    arrivals: list[Arrival] = []
    gone: list[Cancelled] = []
    seen: Counter[str] = Counter()
    without = 0
    for number, line in enumerate(lines[1:], start=2):
        cells = line.split("|")
        if not line.strip():
            continue
        if len(cells) != len(heads):
            raise JoyError(
                f"{len(cells)} columns below {len(heads)} heads",
                where=f"{path}:{number}",
                help="leave out columns with free text, as JobName",
            )
        row = dict(zip(heads, map(str.strip, cells), strict=True))
        if "." in row["JobID"]:  # a step of a job
            continue
        where = f"{path}:{number}"
        tasks = pods_of(row)
        if tasks is None:
            without += 1
            continue
        seen[row["JobID"]] += 1  # a job that was sent back to wait has a row for every try
        tries = seen[row["JobID"]]
        job = GangJob(
            name=row["JobID"] if tries == 1 else f"{row['JobID']}#{tries}",
            tasks=(tasks,),
            queue=row.get(team) or DEFAULT_QUEUE,
            minutes=minutes_of(row.get("TimelimitRaw") or row.get("Timelimit") or ""),
        )
        arrival, left = times_of(row, job, where)
        arrivals.append(arrival)
        if left is not None:
            gone.append(Cancelled(job.name, left))
    cards = "/".join(card_families())
    notes = [f"{without} jobs asked for no card ({cards}): left out"] if without else []
    arrivals.sort(key=lambda arrival: arrival.at)
    gone.sort(key=lambda event: event.at)
    return JobTrace(by_family(arrivals), events=tuple(gone), notes=tuple(notes))


def times_of(row: dict[str, str], job: GangJob, where: str) -> tuple[Arrival, float | None]:
    """When a job came, how long it waited and ran, and when it was taken back while it waited.

    One whose end is not known is taken to run to its time limit.
    """
    submit, start, end = (seconds_of(row[key], where) for key in ("Submit", "Start", "End"))
    if submit is None:
        raise JoyError(f"job {job.name} has no Submit", where=where)
    at = max(submit, seconds_of(row.get("Eligible", ""), where) or submit)
    state = row["State"].partition(" ")[0]
    longest = float("inf") if job.minutes is None else job.minutes * 60
    if state == "PENDING" or start is None or (state == "CANCELLED" and start == end):
        return Arrival(job, at, longest), end
    if start < submit or (end is not None and end < start):
        said = f"job {job.name} starts before it comes, or ends before"
        raise JoyError(said, where=where, help=ASK)
    return Arrival(job, at, longest if end is None else end - start, max(0.0, start - at)), None


def by_family(arrivals: list[Arrival]) -> tuple[Arrival, ...]:
    """With cards of one name only, any node will do; else those of the kinds that are called so."""
    names = {arrival.job.tasks[0].name for arrival in arrivals}
    if len(names) == 1:
        return tuple(arrivals)
    every = kinds.all_kinds().values()
    called = {name: tuple(kind.name for kind in every if kind.family == name) for name in names}
    found = []
    for one in arrivals:
        (task,) = one.job.tasks
        task = replace(task, kinds=called[task.name])
        found.append(replace(one, job=replace(one.job, tasks=(task,))))
    return tuple(found)


def pods_of(row: dict[str, str]) -> PodGroup | None:
    """The nodes of a job as pods of equally many cards; None where it asked for no card."""
    tres = next((row[key] for key in TRES if row.get(key)), "")
    families = card_families()
    found = [(name, model, int(n)) for name, model, n in GRES.findall(tres) if name in families]
    plain = [one for one in found if not one[1]] or found
    total = sum(count for _, _, count in plain)
    if not total:
        return None
    nodes = max(1, int(row["NNodes"])) if row.get("NNodes", "").isdigit() else 1
    pods = next(pods for pods in range(min(nodes, total), total + 1) if total % pods == 0)
    models = tuple(dict.fromkeys(model for _, model, _ in found if model))
    return PodGroup(pods, total // pods, models=models, name=plain[0][0])


def card_families() -> list[str]:
    """What GRES of cards are called; other ones (nvme, tmpdisk, shard) are none."""
    return sorted({kind.family for kind in kinds.all_kinds().values() if kind.cards})


def seconds_of(text: str, where: str) -> float | None:
    """A time; None where there is none."""
    if text in UNSET:
        return None
    if text.isdigit():
        return float(text)
    try:
        time = datetime.fromisoformat(OFFSET.sub(r"\1:\2", text))
    except ValueError as error:
        raise JoyError(f"not a time: {text!r}", where=where, help=ASK) from error
    return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()


def minutes_of(text: str) -> float | None:
    """A time limit in minutes; None where there is none."""
    if text.isdigit():
        return float(text)
    match = LIMIT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60
