"""Tool selection: the right call, as JSON, for a request and a list of tools.

At evaluation the name is chosen among the offered tools by likelihood, so it is always one of
them; the arguments are written freely behind it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train import records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _language
from joymigrate.run.train.tasks.sft import Sft
from joymigrate.run.train.tasks.task import Task, TaskContext, next_token_sum, rows

if TYPE_CHECKING:
    import torch


class ToolSelection(Task):
    """A chat in which the assistant's turn is one call."""

    SCHEMA: ClassVar[str] = (
        '{"query": "…", "tools": [{"name": "…", "description": "…", "parameters": {…}}, …], '
        '"call": {"name": "…", "arguments": {…}}}'
    )
    OPTIONS: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 64}
    FIELDS: ClassVar[Mapping[str, str]] = {**Task.FIELDS, "meta": "uint8"}  # names and call

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        self.sft = Sft(dataclasses.replace(context, options={}))

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample per request."""
        import numpy as np

        names = list_offered(record)
        known = self.context.references or record.get("call") is not None
        call = check_call(record.require("call"), names, record) if known else None
        written = canonical(call) if call is not None else canonical({"name": "", "arguments": {}})
        messages = [
            {"role": "system", "content": listing(record.require("tools"))},
            {"role": "user", "content": record.text("query", "prompt")},
            {"role": "assistant", "content": written},
        ]
        meta = json.dumps({"tools": names, "call": call}).encode()
        made = self.sft.encode(record.with_value({"messages": messages}))
        return [{**sample, "meta": np.frombuffer(meta, dtype=np.uint8)} for sample in made]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Rows of tokens and labels, and what the request offered."""
        made = [_language.document(s["tokens"], s["spans"]) for s in samples]
        metas = [json.loads(bytes(sample["meta"])) for sample in samples]
        return {**rows(made, self.tokenizer.pad_token_id or 0), "metas": metas}

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Cross entropy of the call's tokens."""
        return next_token_sum(output, batch["labels"])

    def predict(self, model: Any, batch: Batch) -> list[dict[str, Any]]:
        """The most likely tool, and the arguments the model writes for it."""
        found = []
        for row, meta in enumerate(batch["metas"]):
            labels = batch["labels"][row].tolist()
            start = next(i for i, label in enumerate(labels) if label != -100)
            prompt = batch["input_ids"][row, :start].tolist()
            found.append(self.choose(model, prompt, meta))
        return found

    def choose(self, model: Any, prompt: list[int], meta: Mapping[str, Any]) -> dict[str, Any]:
        """One request."""
        import math

        heads = [f'{{"name":{json.dumps(name)},"arguments":' for name in meta["tools"]]
        written = [
            [*prompt, *self.tokenizer(head, add_special_tokens=False)["input_ids"]]
            for head in heads
        ]
        scores = _language.sequence_scores(model, written, [len(prompt)] * len(written))
        best = max(range(len(scores)), key=scores.__getitem__)
        limit = int(self.options["max_new_tokens"])
        more = _language.generate(model, written[best], self.tokenizer, limit)
        text = self.tokenizer.decode(more, skip_special_tokens=True)
        arguments = None
        with contextlib.suppress(ValueError):
            arguments, _ = json.JSONDecoder().raw_decode(text.lstrip())
        total = sum(math.exp(score - max(scores)) for score in scores)
        one: dict[str, Any] = {
            "prediction": {"name": meta["tools"][best], "arguments": arguments},
            "score": 1 / total,  # the chosen tool's share among those offered
            "valid_json": arguments is not None,
        }
        return one | ({"reference": meta["call"]} if meta["call"] is not None else {})

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Share of right tools, of arguments that are JSON, and of calls right in everything."""
        known = [row for row in rows if "reference" in row]
        if not known:
            return {}
        names = [row["prediction"]["name"] == row["reference"]["name"] for row in known]
        exact = [row["prediction"] == row["reference"] for row in known]
        return {
            "name_accuracy": sum(names) / len(known),
            "valid_json": sum(bool(row["valid_json"]) for row in known) / len(known),
            "exact_match": sum(exact) / len(known),
        }


def list_offered(record: records.TrainingRecord) -> list[str]:
    """Names of the tools that a record offers."""
    tools = record.require("tools")
    if not isinstance(tools, list) or not tools:
        raise JoyError("tools are a list of objects with a name", where=record.where)
    found = []
    for tool in tools:
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise JoyError(f"a tool needs a name, got {tool!r}", where=record.where)
        found.append(inner["name"])
    return found


def check_call(call: Any, names: Sequence[str], record: records.TrainingRecord) -> dict[str, Any]:
    """A call of one of the offered tools, with arguments as an object."""
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
        raise JoyError(f"a call needs a name, got {call!r}", where=record.where)
    if call["name"] not in names:
        raise JoyError(
            f"the call's tool '{call['name']}' is not offered.{did_you_mean(call['name'], names)}",
            where=record.where,
        )
    arguments = call.get("arguments") or {}
    if isinstance(arguments, str):  # as OpenAI's format has it
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise JoyError(f"the call's arguments: {error}", where=record.where) from None
    return {"name": call["name"], "arguments": arguments}


def canonical(call: Mapping[str, Any]) -> str:
    """The one way in which a call is written."""
    arguments = json.dumps(
        call["arguments"], ensure_ascii=False, sort_keys=True, separators=(",", ":")
    )
    return f'{{"name":{json.dumps(call["name"])},"arguments":{arguments}}}'


def listing(tools: Sequence[Mapping[str, Any]]) -> str:
    """The system's text: one tool per line."""
    return "Tools:\n" + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)


TASK = ToolSelection
