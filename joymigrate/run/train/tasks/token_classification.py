"""Token classification: named spans of a text, as in address parsing.

Spans are learned as B-/I-/O tags of tokens. A tokenizer that tells where its tokens stand in the
text (every fast one) is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train import records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _inputs
from joymigrate.run.train.tasks.task import TOKENS, TaskContext, token_sum

if TYPE_CHECKING:
    import torch

Entity = dict[str, Any]  # start, end (characters), label


class TokenClassification(_inputs.PaddedTexts):
    """Entities of a text with their places."""

    MODEL: ClassVar[str] = "AutoModelForTokenClassification"
    SCHEMA: ClassVar[str] = (
        '{"text": "…", "entities": [{"start": 0, "end": 4, "label": "city"}, …]}, '
        'or {"words": […], "tags": ["B-city", "O", …]}'
    )
    OPTIONS: ClassVar[Mapping[str, Any]] = {"labels": None}
    # A tag of each token (-100: not counted), where each stands, and the text itself.
    FIELDS: ClassVar[Mapping[str, str]] = {
        **{"tokens": TOKENS, "tags": "int32", "places": "int32", "text": "uint8"}
    }

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        if not getattr(context.tokenizer, "is_fast", False):
            raise JoyError(
                "the tokenizer does not tell where its tokens stand in the text",
                help="use a fast tokenizer (tokenizer.json), or tokenizer: bytes",
            )
        given = self.options["labels"]
        self.names = tuple(map(str, given)) if given else collect_names(context)
        self.options["labels"] = list(self.names)
        self.tags = ("O", *(f"{sign}-{name}" for name in self.names for sign in "BI"))

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample per text."""
        import numpy as np

        text, entities = parse_entities(record, needed=self.context.references)
        made = self.tokenizer(
            text, truncation=True, max_length=self.context.max_length, return_offsets_mapping=True
        )
        places = np.array(made["offset_mapping"], dtype=np.int32).reshape(-1, 2)
        record.fate.cut += sum(len(more) for more in made[0].overflowing) if made.encodings else 0
        ends = sorted((one["start"], one["end"]) for one in entities or ())
        if any(start < end for (_, end), (start, _) in itertools.pairwise(ends)):
            record.fate.notes.add("entities overlap, and the later one is learned there")
        real = places[:, 1] > places[:, 0]
        tags = np.where(real, 0, -100)
        for entity in entities or ():
            number = 1 + 2 * _inputs.class_of(self.names, entity["label"], record)
            inside = real & (places[:, 0] < entity["end"]) & (places[:, 1] > entity["start"])
            tags[inside] = number + 1
            tags[np.flatnonzero(inside)[:1]] = number
        known = entities is not None
        if not real.any():
            record.fate.dropped = "nothing in it is learned"
            return []
        return [
            {
                "tokens": np.asarray(made["input_ids"]),
                "tags": tags if known else np.where(real, -1, -100),
                "places": places.reshape(-1),
                "text": np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8),
                "weight": np.array([real.sum()]),
            }
        ]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Padded texts, tags [B, L], and what turns tags into entities again."""
        tags_BL, _ = _inputs.pad_rows([sample["tags"] for sample in samples], -100)
        return {
            **_inputs.texts(samples, self.tokenizer),
            "labels": tags_BL,
            "places": [sample["places"].reshape(-1, 2).tolist() for sample in samples],
            "texts": [bytes(s["text"]).decode("utf-8", "surrogatepass") for s in samples],
        }

    def build(self, source: Any) -> Any:
        """A model with a head over the tags."""
        more = _inputs.head_settings(self.tags)
        return source.transformers(self.MODEL, pad_token_id=self.tokenizer.pad_token_id, **more)

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Cross entropy of every real token's tag."""
        return token_sum(output, batch["labels"])

    def predictions(self, output: torch.Tensor, batch: Batch) -> list[dict[str, Any]]:
        """Entities with their texts; the score is the mean probability of the chosen tags."""
        best_BL, shares_BL = output.argmax(-1), output.float().softmax(-1).amax(-1)
        found = []
        for row, (places, text) in enumerate(zip(batch["places"], batch["texts"], strict=True)):
            truth = batch["labels"][row, : len(places)]
            counted = (truth != -100).tolist()
            guess = best_BL[row].tolist()
            one = {
                "prediction": self.entities(guess, places, counted, text),
                "score": float(shares_BL[row, : len(places)][truth != -100].mean()),
                "text": text,
            }
            if (truth[truth != -100] >= 0).all():
                one["reference"] = self.entities(truth.tolist(), places, counted, text)
                pairs = [
                    (g, t) for g, t, c in zip(guess, truth.tolist(), counted, strict=False) if c
                ]
                one["tags"] = len(pairs)
                one["correct"] = sum(g == t for g, t in pairs)
            found.append(one)
        return found

    def entities(
        self,
        tags: Sequence[int],
        places: Sequence[Sequence[int]],
        counted: Sequence[bool],
        text: str,
    ) -> list[Entity]:
        """Runs of tags as spans of characters; an I- behind nothing of its kind begins one."""
        found: list[Entity] = []
        before = None
        for tag, (start, end), real in zip(tags, places, counted, strict=False):
            if not real:
                continue
            label = None if tag <= 0 else self.names[(tag - 1) // 2]
            if label is not None and tag % 2 == 0 and label == before:
                found[-1]["end"] = max(end, found[-1]["end"])
            elif label is not None:
                found.append({"start": start, "end": end, "label": label})
            before = label
        return [{**one, "text": text[one["start"] : one["end"]]} for one in found]

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Share of right tags; precision, recall and F1 of entities with exact borders."""
        known = [row for row in rows if "reference" in row]
        if not known:
            return {}
        hits = given = true = 0
        for row in known:
            guess, truth = (
                {(e["start"], e["end"], e["label"]) for e in row[side]}
                for side in ("prediction", "reference")
            )
            hits, given, true = hits + len(guess & truth), given + len(guess), true + len(truth)
        return {
            "tag_accuracy": sum(r["correct"] for r in known) / sum(r["tags"] for r in known),
            "entity_precision": hits / given if given else 0.0,
            "entity_recall": hits / true if true else 0.0,
            "entity_f1": 2 * hits / (given + true) if given + true else 1.0,
        }


def parse_entities(
    record: records.TrainingRecord, *, needed: bool
) -> tuple[str, list[Entity] | None]:
    """Text and entities of a record; None for entities that are not known."""
    words = record.get("words")
    if words is not None:
        words = record.listed("words", records.as_text)
        tags = record.listed("tags", records.as_text) if record.get("tags") is not None else None
        return join_words(words, tags, record)
    text = record.text("text")
    entities = record.require("entities") if needed else record.get("entities")
    if entities is None:
        return text, None
    found = []
    for one in entities:
        if not isinstance(one, Mapping) or not {"start", "end", "label"} <= one.keys():
            raise JoyError(f"an entity needs start, end and label, got {one!r}", where=record.where)
        if not all(type(one[side]) is int for side in ("start", "end")):
            raise JoyError(f"start and end are whole numbers, got {one!r}", where=record.where)
        if not 0 <= one["start"] < one["end"] <= len(text):
            raise JoyError(
                f"entity {one['start']}:{one['end']} lies outside the text of {len(text)} signs",
                where=record.where,
            )
        found.append(dict(one))
    return text, found


def join_words(
    words: Sequence[str], tags: Sequence[str] | None, record: records.TrainingRecord
) -> tuple[str, list[Entity] | None]:
    """Words with B-/I-/O tags as one text with spans; words are joined by a space."""
    if tags is None:
        return " ".join(words), None
    if len(tags) != len(words):
        raise JoyError(f"{len(words)} words have {len(tags)} tags", where=record.where)
    found: list[Entity] = []
    at, open_label = 0, None
    for word, tag in zip(words, tags, strict=True):
        sign, _, label = tag.partition("-")
        if sign == "I" and label == open_label:
            found[-1]["end"] = at + len(word)
        elif sign in ("B", "I"):
            found.append({"start": at, "end": at + len(word), "label": label})
        elif tag != "O":
            raise JoyError(f"a tag is O, B-NAME or I-NAME, got '{tag}'", where=record.where)
        open_label = label if sign in ("B", "I") else None
        at += len(word) + 1
    return " ".join(words), found


def collect_names(context: TaskContext) -> tuple[str, ...]:
    """All names of entities in the training files."""
    found: set[str] = set()
    for record, _ in records.read(context.files):
        found.update(str(one["label"]) for one in parse_entities(record, needed=True)[1] or ())
    if not found:
        raise JoyError(
            "the data name no entity",
            where=", ".join(map(str, context.files)),
            help="give task: {labels: [city, street, …]}",
        )
    return tuple(sorted(found))


TASK = TokenClassification
