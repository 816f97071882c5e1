"""`kit score`: how good the predictions were, and what is known from then on. `kit merge`: many."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from joymigrate.chips.calibration import Calibration
from joymigrate.errors import JoyError
from joymigrate.run.kit.make import KEPT
from joymigrate.run.kit.repro import shapes
from joymigrate.run.kit.runner.judge import FIGURES, attribute, deviations

SCHEMA = "joymigrate.score/1"
PATH = re.compile(
    r"(?<![\w…])/(home|root|Users|data|mnt|opt|tmp|usr|workspace)/|/home/|/Users/|\b[A-Z]:\\\\"
)
ADDRESS = re.compile(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b|[\w.]+@[\w-]+\.\w")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
BAD = ("refused", "fallback", "hung", "crashed", "wrong result")
OUTCOMES = (*BAD, "accepted", "skipped")
NEEDED = ("kit", "chip", "device_name", "versions", "date", "results", "rehearsal")
IDENTITY = ("driver", "sdk", "cards")  # of `environment`: what a machine with a chip has
ROW = ("id", "section", "op", "dtype", "layout", "outcome", "predicted")


def check(score: Any, where: str) -> Mapping[str, Any]:
    """A score of a kit; JoyError for anything else, with the first mistake."""
    if not isinstance(score, Mapping) or score.get("schema") != SCHEMA:
        raise JoyError("not a score", where=where, help="python kit/run.py writes score.json")
    for key in NEEDED:
        if key not in score:
            raise JoyError(f"'{key}' is missing", where=where)
    if not DATE.fullmatch(str(score["date"])):
        raise JoyError(f"'{score['date']}' is no date such as 2026-05-01", where=f"{where} date")
    if not isinstance(score["rehearsal"], bool) or not isinstance(score["results"], list):
        raise JoyError("`rehearsal` is true or false, `results` a list", where=where)
    ids = set()
    for number, row in enumerate(score["results"]):
        place = f"{where} results.{number}"
        for key in ROW:
            if not isinstance(row, Mapping) or key not in row:
                raise JoyError(f"'{key}' is missing", where=place)
        if row["outcome"] not in OUTCOMES:
            raise JoyError(
                f"no outcome is called '{row['outcome']}'", where=f"{place}.outcome",
                help=f"known: {', '.join(OUTCOMES)}",
            )  # fmt: skip
        check_figures(row, place)
        if row["id"] in ids:
            raise JoyError(f"'{row['id']}' is there twice", where=place)
        ids.add(row["id"])
    for place, value in leaves(score, where):
        if isinstance(value, float) and not math.isfinite(value):
            raise JoyError(f"{value} is no figure", where=place)
        private = PATH.search(str(value)) or (
            ADDRESS.search(str(value)) and ".versions." not in f"{place}."
        )
        if isinstance(value, str) and private:
            what = "a path" if PATH.search(value) else "an address"
            raise JoyError(
                f"a message holds {what}", where=place, help="leave it out before you share a score"
            )
    return score


def check_figures(row: Mapping[str, Any], where: str) -> None:
    """The figures of a section, in the row and in its prediction, where both were accepted."""
    said = row["predicted"]
    if not isinstance(said, Mapping):
        raise JoyError("`predicted` is a mapping", where=where)
    if not row["outcome"] == said.get("outcome") == "accepted":
        return
    for key in FIGURES.get(str(row["section"]), ()):
        for part, name in ((row, where), (said, f"{where}.predicted")):
            if key not in part:
                raise JoyError(f"'{key}' is missing", where=name)
        if key == "losses" and len(row[key]) != len(said[key]):
            raise JoyError(f"'{key}' has {len(row[key])} values, not {len(said[key])}", where=where)


def count_alone(known: Calibration) -> int:
    """Rows of a calibration that one source alone made: nobody has verified them."""
    return sum(
        row["grade"] == "measured" and len(row["sources"]) == 1 for row in known.rows.values()
    )


def find_doubt(score: Mapping[str, Any], device: str) -> str:
    """Why a score that no rehearsal made says nothing of a chip; empty where it does."""
    machine = score.get("environment") or {}
    if score["rehearsal"]:
        return ""
    if score.get("device", device) != device:
        return f"made on {score['device']}, not on {device}"
    lacking = [name for name in IDENTITY if not machine.get(name)]
    return f"its machine names no {', '.join(lacking)}" if lacking else ""


def require_machine(
    score: Mapping[str, Any],
    device: str,
    where: str,
    aid: str = "a score to share is made by python kit/run.py beside a chip",
) -> None:
    """Raises JoyError for a score that no rehearsal made and that says nothing of a chip."""
    if doubt := find_doubt(score, device):
        raise JoyError(f"{doubt}: it says nothing of the chip", where=where, help=aid)


def leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every text and number of a document with its place."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{place} {key}" if " " not in place else f"{place}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from leaves(item, f"{place}.{number}")
    else:
        yield place, value


def judge_rows(score: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every row with its deviations, judged here and not by the kit that ran."""
    rows = [dict(row) for row in score["results"]]
    for row in rows:
        row["deviations"] = deviations(row, row["predicted"], row)
    attribute(rows)
    return rows


def quality(rows: Iterable[Mapping[str, Any]], by: str) -> list[dict[str, Any]]:
    """Precision and recall of the predicted troubles (refusals, fallbacks), per `by`.

    A trouble counts as predicted when the outcome was named; a deviation of a result, a layout or
    a time limit that nobody named is a miss. None where nothing was predicted or found.
    """
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[str(row[by])].append(row)
    found = []
    for name, group in sorted(groups.items()):
        hits = sum(trouble(row) and is_predicted(row) and not row["deviations"] for row in group)
        alarms = sum(is_predicted(row) for row in group)
        troubles = sum(trouble(row) for row in group)
        found.append({
            by: name, "cases": len(group), "deviations": sum(bool(r["deviations"]) for r in group),
            "precision": round(hits / alarms, 4) if alarms else None,
            "recall": round(hits / troubles, 4) if troubles else None,
        })  # fmt: skip
    return found


def is_predicted(row: Mapping[str, Any]) -> bool:
    """Whether trouble was predicted: an outcome, or a deviation that was measured before."""
    said = row["predicted"]
    return said.get("outcome") in BAD or bool(said.get("known_deviation"))


def trouble(row: Mapping[str, Any]) -> bool:
    """Whether the chip did something else than run the case well."""
    return row["outcome"] in BAD or bool(row["deviations"]) or is_known(row)


def is_known(row: Mapping[str, Any]) -> bool:
    """A measured deviation that shows again."""
    return bool(row["predicted"].get("known_deviation"))


def calibrate(scores: Sequence[Mapping[str, Any]], known_rows: Calibration) -> Calibration:
    """The rows of scores joined to what is known; a later date wins, sources add up.

    A score of a simulated chip stays `rehearsed` and never replaces what was measured.
    """
    rows = dict(known_rows.rows)
    for score in sorted(scores, key=lambda one: (not one["rehearsal"], one["date"])):
        if score["chip"] != known_rows.chip:
            raise JoyError(f"a score of {score['chip']}, expected {known_rows.chip}")
        grade = "rehearsed" if score["rehearsal"] else "measured"
        for row in judge_rows(score):
            old = rows.get(row["id"])
            if row["outcome"] == "skipped" or (old and old["grade"] == "measured" != grade):
                continue
            found = {key: row[key] for key in KEPT if key in row and row[key] not in ("", None)}
            names = row["deviations"] or list(row["predicted"].get("known_deviation") or ())
            if names:
                found["known_deviation"] = names
            source = {
                "device": score["device_name"], "versions": score["versions"],
                "date": score["date"], "kit": score["kit"],
            }  # fmt: skip
            sources = [one for one in (old["sources"] if old else ()) if one != source]
            rows[row["id"]] = {
                "id": row["id"], "op": row["op"], "dtype": row["dtype"], "layout": row["layout"],
                "inputs": shapes(row.get("args") or []), "found": found, "deviations": names,
                "grade": grade,
                "sources": [*sources, source],
            }  # fmt: skip
    return Calibration(known_rows.chip, rows)
