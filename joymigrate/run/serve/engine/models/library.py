"""Every other causal model of transformers, through our scheduler and cache.

The model runs packed: all tokens of a step as one row, with their positions, and with an attention
function of ours in place of its own. Layers that keep states run text by text (see states.py).
What else is no attention over all past tokens (attention that a model computes by itself) cannot
run so; a model is tried when it is loaded, two short texts packed against the same two alone, and
refused when they differ.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.adapters import Selection
from joymigrate.run.serve.engine.batch import Batch, arrange, make_batch
from joymigrate.run.serve.engine.cache import Cache, CacheShape
from joymigrate.run.serve.engine.models import states
from joymigrate.run.serve.engine.scheduler import Chunk
from joymigrate.run.serve.engine.sequence import Sequence as Text

OURS = "joymigrate_paged"
HELP = "serve it with an engine that has it: serve --engine vllm, or behind a gateway"
CURRENT = threading.local()
# Two of the texts' lengths: more than one block of 4, not a multiple of it.
TRIAL = (9, 5)


@dataclass(slots=True)
class AttentionStep:
    """What the attention function needs while a step runs; without a cache it only looks on."""

    batch: Batch | None = None
    cache: Cache | None = None
    seen: dict[int, CacheShape] = field(default_factory=dict)
    calls: int = 0
    windows: dict[int, int] = field(default_factory=dict)  # of layers, by their configuration
    # Of layers with states, by number of the chunk and by layer: before the step, and behind it.
    before: list[dict[int, states.Layer]] = field(default_factory=list)
    states: dict[int, dict[int, states.Layer]] = field(default_factory=dict)


@contextmanager
def during(step: AttentionStep) -> Iterator[AttentionStep]:
    """Attention calls of this thread belong to `step`."""
    before = getattr(CURRENT, "step", None)
    CURRENT.step = step
    try:
        yield step
    finally:
        CURRENT.step = before


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: [1, H, T, D] queries → [1, T, H, E]."""
    step: AttentionStep | None = getattr(CURRENT, "step", None)
    if step is None:
        raise RuntimeError("a model with paged attention was called outside the engine")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise JoyError(f"{type(module).__name__} does not say which layer it is", help=HELP)
    if sliding_window is None:  # some families say it in their mask alone
        sliding_window = step.windows.get(layer)
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    step.calls += 1
    if step.cache is None:
        step.seen[layer] = CacheShape(
            q.shape[1], k.shape[1], k.shape[2], v.shape[2], scaling, sliding_window, softcap,
            s_aux is not None,
        )  # fmt: skip
        return v.repeat_interleave(q.shape[1] // k.shape[1], 1)[None], None
    assert step.batch is not None
    order = layer_order(step.cache, layer)
    attended = step.cache.attend(
        order,
        q.contiguous(),
        k,
        v,
        step.batch,
        scale=scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return attended[None], None


def layer_order(cache: Cache, layer: int) -> int:
    """Which of the cache's layers a model's layer is."""
    return cache.order.get(layer, layer)


def register() -> None:
    """Make the attention function known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(OURS, attention)


class TransformersModel:
    """A `Model` (see model.py) that transformers computes."""

    path = "transformers"
    linear = "transformers"
    changing_base: int | None = None
    starts_over = False
    embeds = False
    stateful = False
    state_bytes = 0  # of each text
    ours: Any = OURS  # implementations of attention: of the engine, and to compare with
    plain: Any = "eager"

    def __init__(self, model: Any, family: str, dtype: torch.dtype, device: torch.device) -> None:
        self.model = model
        self.config = model.config
        self.family = family
        self.dtype = dtype
        self.device = device
        text = model.config.get_text_config(decoder=True)
        self.vocabulary = int(text.vocab_size)
        self.positions = positions_of(text)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.takes = set(inspect.signature(model.forward).parameters)
        self.notes: tuple[str, ...] = ()
        self.selection = Selection()
        self.windows = windows_of(text)
        self.stateful = states.attach(model, lambda: getattr(CURRENT, "step", None)) > 0
        self.shapes = self.probe()

    def call(self, ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Scores of the tokens after `rows`, float32."""
        inputs = {"input_ids": ids[None], "position_ids": positions[None], "use_cache": False}
        if "position_ids" not in self.takes and "kwargs" not in self.takes:
            del inputs["position_ids"]
        if "logits_to_keep" in self.takes:
            scores = self.model(**inputs, logits_to_keep=rows).logits[0]
        else:
            scores = self.model(**inputs).logits[0][rows]
        return scores.float()  # type: ignore[no-any-return]

    def hidden(self, batch: Batch, cache: Cache) -> Tensor:
        """The scores themselves: what a model does between its states and them is its own."""
        self.selection.groups = batch.adapters
        before = states.recall(batch.chunks) if self.stateful else []
        with during(AttentionStep(batch, cache, windows=self.windows, before=before)) as step:
            made = self.call(batch.ids, batch.positions, batch.rows)
        if self.stateful:
            states.keep(batch.chunks, before, step.states)
        return made

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, float32."""
        return hidden

    def probe(self) -> list[CacheShape]:
        """What each layer keeps, from a call with three tokens. Raises `JoyError` when layers
        share keys and values, or do not call the attention function at all."""
        ids = torch.arange(3, device=self.device)
        with during(AttentionStep(windows=self.windows)) as step:
            self.call(ids, ids, ids)
        layers = int(self.model.config.get_text_config(decoder=True).num_hidden_layers)
        if self.stateful:
            self.state_bytes = states.count_bytes(step.states.get(0, {}))
        covered = len(step.seen) == layers or self.stateful  # what keeps nothing is tried below
        if step.calls != len(step.seen) or not covered:
            raise JoyError(
                f"{self.family}: {len(step.seen)} of {layers} layers attend through transformers' "
                f"attention interface ({step.calls} calls); the others keep a state of another "
                "kind, or share theirs",
                help=HELP,
            )
        self.order = {layer: i for i, layer in enumerate(sorted(step.seen))}
        return [step.seen[layer] for layer in sorted(step.seen)]

    def look_alike(self) -> None:
        """Raise `JoyError` unless two texts packed give what each gives alone."""
        texts = [[(7 * i + 3 * n) % self.vocabulary for i in range(n)] for n in TRIAL]
        want = self.alone(texts)
        got = self.packed(texts)
        # bfloat16 keeps 8 bits, and a model adds up layers of them
        close = 5e-2 if self.dtype is not torch.float32 else 1e-3
        spread = float(want.abs().max()) or 1.0
        worst = float((want - got).abs().max()) / spread
        if not worst < close:
            raise JoyError(
                f"{self.family}: texts packed together differ from the same alone by "
                f"{worst:.1e} of the largest score, so something besides attention mixes tokens",
                help=HELP,
            )

    def alone(self, texts: Sequence[list[int]]) -> Tensor:
        """The last scores of each text, computed by transformers' own attention."""
        self.model.set_attn_implementation(self.plain)
        try:
            rows = []
            for ids in texts:
                row = torch.tensor([ids], device=self.device)
                rows.append(self.model(input_ids=row, use_cache=False).logits[0, -1].float())
            return torch.stack(rows)
        finally:
            self.model.set_attn_implementation(self.ours)

    def packed(self, texts: Sequence[list[int]]) -> Tensor:
        """The last scores of each text: packed, the newest tokens one by one."""
        size = 4
        sequences = [Text("", list(ids), len(ids), len(ids)) for ids in texts]
        first = 0
        for sequence in sequences:
            needed = -(-len(sequence.ids) // size)
            sequence.blocks = list(range(first, first + needed))
            first += needed
        cache = Cache(self.shapes, first, size, self.dtype, self.device, "reference")
        cache.order = self.order
        pieces = (4, 2, 1, 1) if self.stateful else (2, 1, 1)  # behind a state in pieces, too
        for step, piece in enumerate(pieces):
            chunks = []
            for sequence in sequences:
                count = piece if step else len(sequence.ids) - sum(pieces[1:])
                chunks.append(Chunk(sequence, sequence.computed, count))
                sequence.computed += count
            batch = make_batch(arrange(chunks), size, self.device)
            self.set_positions(batch)
            scores = self.hidden(batch, cache)
        by_text = dict(zip([id(c.sequence) for c in arrange(chunks)], scores, strict=True))
        return torch.stack([by_text[id(sequence)] for sequence in sequences])

    def set_positions(self, batch: Batch) -> None:
        """Positions of a batch without images."""


def windows_of(text: Any) -> dict[int, int]:
    """The sliding windows of a configuration, by layer: the trial shows whether they are meant."""
    window = getattr(text, "sliding_window", None)
    if not isinstance(window, int) or getattr(text, "use_sliding_window", True) is False:
        return {}
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * text.num_hidden_layers
    return {layer: window for layer, kind in enumerate(kinds) if kind == "sliding_attention"}


def positions_of(text: Any) -> int:
    """The most tokens of one sequence."""
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"):
        found = getattr(text, name, None)
        if isinstance(found, int):
            return found
    return 1 << 20
