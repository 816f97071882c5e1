"""An exported OneRec model as a `Writer` of beam search: histories in, codes out.

What the encoder made of a history (keys and values of each decoder layer) is stored once a request;
the beams keep only what they wrote, at most K codes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.beam import Trie, attend, remember
from joymigrate.run.train.recommendation import sizes_of
from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs
from joymigrate.run.train.recommendation.onerec import DecoderCache, OneRec
from joymigrate.run.train.samples.lookup import Widen
from joymigrate.run.train.samples.schema import FeatureSchema
from joymigrate.run.train.semantic_ids.codes import CODES, SemanticIds, read_codes
from joymigrate.schema import read

ARCHITECTURE = "joymigrate.recommender/1"
HELP = "a folder of train export: task: generative with model_type: onerec"


def recognise(folder: Path) -> bool:
    """Whether `train export` wrote a model that writes semantic ids there."""
    try:
        found = json.loads((folder / "config.json").read_text())
        return bool(found["architecture"] == ARCHITECTURE and found["model_type"] == "onerec")
    except (OSError, ValueError, KeyError, TypeError):
        return False


@dataclass(frozen=True, slots=True, eq=False)
class ItemRecommender:
    """A model, the rows of its items, their semantic ids, and the trie of these."""

    model: OneRec
    ids: Tensor  # of the table, rising
    rows: Tensor
    semantic: SemanticIds
    trie: Trie
    events: int  # that the encoder reads

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.rows.device

    def places(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Where items stand in the table, and which are not there."""
        at = torch.searchsorted(self.ids, items).clamp(max=len(self.ids) - 1)
        return at, self.ids[at] != items

    def unknown(self, items: Sequence[int]) -> int | None:
        """The first item that the table does not have."""
        given = torch.tensor(list(items), device=self.device)
        missing = self.places(given)[1].nonzero()
        return int(given[missing[0, 0]]) if len(missing) else None

    def narrowed(self, items: Sequence[int]) -> Trie:
        """The trie of some items; `JoyError` names one without a semantic id."""
        wanted = torch.tensor(sorted(set(items)))
        codes = self.semantic.of(wanted)
        missing = (codes[:, 0] < 0).nonzero()
        if len(missing):
            raise JoyError(f"item {int(wanted[missing[0, 0]])} has no semantic id")
        return Trie.of(codes, wanted).to(self.device)


@dataclass(slots=True)
class CodeState:
    """One request: the events' keys and values, and by layer those of each beam [W, S, H, D]."""

    memory: DecoderCache
    own: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    level: int = 0


class CodeWriter:
    """Writes codes for beams; prompts are lists of item ids, the oldest first."""

    def __init__(self, served: ItemRecommender) -> None:
        self.served, self.model = served, served.model

    @torch.no_grad()
    def begin(self, prompts: Sequence[Sequence[int]]) -> list[tuple[CodeState, Tensor]]:
        """Encode the histories together, padded to the longest."""
        served = self.served
        kept = [list(prompt)[-served.events :] for prompt in prompts]
        length = max(1, *map(len, kept))
        ids_BL = torch.zeros(len(kept), length, dtype=torch.long, device=served.device)
        mask_BL = torch.zeros(len(kept), length, dtype=torch.bool, device=served.device)
        for row, items in enumerate(kept):
            ids_BL[row, : len(items)] = torch.tensor(items, dtype=torch.long)
            mask_BL[row, : len(items)] = True
        at, _ = served.places(ids_BL)
        rows_BLD = served.rows[at] * mask_BL[..., None]
        codes = (served.semantic.of(ids_BL), torch.empty(0))
        none = rows_BLD.new_empty(len(kept), 0)
        inputs = RowInputs(
            none, none, events=((rows_BLD, mask_BL, rows_BLD[:, 0]),), codes=(codes,)
        )
        memory = self.model.read(inputs)
        states = [CodeState(memory.row(row)) for row in range(len(kept))]
        zero = [torch.zeros(1, dtype=torch.long, device=served.device) for _ in kept]
        logits = self.step(states, zero, zero)
        return [(state, rows[0]) for state, rows in zip(states, logits, strict=True)]

    @torch.no_grad()
    def step(
        self, states: Sequence[CodeState], parents: Sequence[Tensor], tokens: Sequence[Tensor]
    ) -> list[Tensor]:
        """All beams go through each layer together, but for attention."""
        model, counts = self.model, [len(one) for one in tokens]
        levels = [state.level for state in states]
        x = torch.cat(
            [model.embed_level(codes, level) for codes, level in zip(tokens, levels, strict=True)]
        )
        for number, layer in enumerate(model.decoder):
            part: Any = layer
            inner = part.norm_1(x)
            new = (part.own.asks(inner), *part.own.keys(inner))
            split = zip(*(torch.split(t, counts) for t in new), strict=True)
            mixed = [
                self.mix(state, number, above, rows)
                for state, above, rows in zip(states, parents, split, strict=True)
            ]
            x = x + part.own.output(torch.cat(mixed).flatten(1))
            asked = torch.split(part.cross.asks(part.norm_2(x)), counts)
            looked = []
            for state, q in zip(states, asked, strict=True):
                k, v = state.memory.layers[number]
                looked.append(attend(q, (k[0], v[0]), None))
            x = x + part.cross.output(torch.cat(looked).flatten(1))
            x = x + part.feed(part.norm_3(x))
        ends = torch.split(model.end(x), counts)
        for state in states:
            state.level += 1
        return [model.heads[level](rows) for level, rows in zip(levels, ends, strict=True)]

    def mix(
        self, state: CodeState, number: int, parents: Tensor, rows: tuple[Tensor, ...]
    ) -> Tensor:
        """Attention of one request's beams on what they wrote."""
        q, k, v = rows
        own = remember(state.own, number, parents, (k[:, None], v[:, None]))
        keys, values = (t.transpose(1, 2) for t in own)
        found = torch.nn.functional.scaled_dot_product_attention(q[:, :, None], keys, values)
        return found[:, :, 0]


def load(folder: Path, device: str = "cpu") -> ItemRecommender:
    """The model of a folder that `train export` wrote. Raises `JoyError`."""
    from safetensors.torch import load_file

    if not recognise(folder):
        raise JoyError("this is no generative recommender", where=str(folder), help=HELP)
    document = json.loads((folder / "config.json").read_text())
    schema = read(FeatureSchema, document.get("features"), str(folder / "config.json"))
    name = schema.sequences()[0]
    table = schema.table_of(name)
    semantic = read_codes(folder / CODES)
    sizes = {k: v for k, v in document.items() if k not in ("architecture", "features")}
    settings = sizes_of(sizes)
    settings.pop("model_type")
    events = schema.features[name].length
    widths = {name: one.width for name, one in schema.tables().items()}
    shape = InputShape(0, 0, max(widths.values()), (events,), 1, semantic.sizes)
    model = OneRec(shape, **settings)
    try:
        stored = load_file(folder / f"table.{table}.safetensors")
        dense = load_file(folder / "dense.safetensors")
        matrices = Widen.taken_from(dense, widths)
        model.load_state_dict(dense)
    except (OSError, RuntimeError) as error:
        raise JoyError(f"the model's files do not fit: {error}", where=str(folder)) from None
    order = stored["ids"].argsort()
    model.to(device).eval()
    trie = Trie.of(semantic.codes, semantic.ids).to(device)
    ids, rows = stored["ids"][order].to(device), stored["rows"][order].to(device)
    if table in matrices:
        rows = rows @ matrices[table].to(device).T
    return ItemRecommender(model, ids, rows, semantic, trie, events)
