"""Label Studio's JSON: its exports become records, predictions become its pre-annotations.

Known kinds of results: `labels` (spans of a text), `choices` (one class of a text or an image),
`number` and `rating` (a score). Regions of images are left out, and said to be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train import records

SCORES = ("number", "rating")


def records_of(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Records of an export (a JSON list of tasks), and what was left out with the reason."""
    made, left = [], []
    for number, task in enumerate(read(path)):
        where = f"{path} task {task.get('id', number)}"
        if not isinstance(task.get("data"), Mapping):
            raise JoyError("a task has no data", where=where, help="export as JSON, not JSON-MIN")
        done = [one for one in task.get("annotations") or () if not one.get("was_cancelled")]
        if not done:
            left.append(f"{where}: not annotated")
            continue
        found, strange = record_of(task["data"], done[-1].get("result") or ())
        left += [f"{where}: results of kind '{kind}' are left out" for kind in strange]
        made.append({"id": str(task.get("id", number)), **found})
    if not made:
        raise JoyError("no task of the export is annotated", where=str(path))
    return made, left


def read(path: Path) -> list[dict[str, Any]]:
    """The list of tasks in a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JoyError(f"cannot read the export: {error}", where=str(path)) from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise JoyError("an export is a list of tasks", where=str(path), help="export as JSON")
    return found


def record_of(
    data: Mapping[str, Any], results: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """One record; kinds of results that say nothing here."""
    made: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, str) and name in ("image", "text"):
            made[name] = value
    if not made:
        name, value = next(((k, v) for k, v in data.items() if isinstance(v, str)), ("text", ""))
        picture = any(r.get("to_name") == "image" for r in results)
        made["image" if picture else "text"] = value
    strange = []
    for result in results:
        kind, value = result.get("type"), result.get("value") or {}
        if kind == "labels" and value.get("labels"):
            span = {"start": value["start"], "end": value["end"], "label": value["labels"][0]}
            made.setdefault("entities", []).append(span)
        elif kind == "choices" and value.get("choices"):
            made["label"] = value["choices"][0]
        elif kind in SCORES and value.get(kind) is not None:
            made["score"] = value[kind]
        else:
            strange.append(str(kind))
    if "label" not in made and "score" not in made and "image" not in made:
        made.setdefault("entities", [])  # a text in which nothing was found
    return made, sorted(set(strange))


def tasks_of(samples: Path, data: Path, version: str) -> list[dict[str, Any]]:
    """Tasks with predictions, for Label Studio's import: samples joined to records by id."""
    known = {}
    for number, (record, _) in enumerate(records.read([data])):
        own = record.value.get("id")
        known[str(number if own is None else own)] = record.value
    made = []
    for record, _ in records.read([samples], "jsonl"):
        name = str(record.require("id"))
        if name not in known:
            raise JoyError(f"the data have no record '{name}'", where=record.where)
        value = known[name]
        source = "image" if value.get("image") is not None else "text"
        text = value.get(source)
        if text is None and value.get("words") is not None:
            text = " ".join(value["words"])
        prediction: dict[str, Any] = {
            "model_version": version,
            "result": results_of(record.value.get("prediction"), source, record),
        }
        if isinstance(record.value.get("score"), int | float):
            prediction["score"] = record.value["score"]
        made.append({"data": {source: text, "id": name}, "predictions": [prediction]})
    return made


def results_of(
    prediction: Any, source: str, record: records.TrainingRecord
) -> list[dict[str, Any]]:
    """A prediction as results: spans, a class, or a number."""
    to = {"to_name": source}
    if isinstance(prediction, list) and all(isinstance(one, Mapping) for one in prediction):
        return [
            {
                **{"id": f"r{number}", "from_name": "label", **to, "type": "labels"},
                "value": {
                    **{key: one[key] for key in ("start", "end", "text") if key in one},
                    "labels": [one["label"]],
                },
            }
            for number, one in enumerate(prediction)
        ]
    if isinstance(prediction, str):
        value: dict[str, Any] = {"choices": [prediction]}
        return [{"id": "r0", "from_name": "choice", **to, "type": "choices", "value": value}]
    if isinstance(prediction, int | float):
        value = {"number": prediction}
        return [{"id": "r0", "from_name": "number", **to, "type": "number", "value": value}]
    raise JoyError(
        "the prediction is neither spans, a class nor a number",
        where=record.where,
        help="samples of classification, token-classification, image-classification, regression",
    )
