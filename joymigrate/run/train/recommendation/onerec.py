"""OneRec's kind: an encoder reads the events, a decoder writes the next item's semantic id.

Shapes: B rows, L events, K levels of an id, V entries of a level, W beams, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.kernels.mask import Causal, Dense, Full, JaggedMask
from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes, need_events

PAPER = "Deng et al., OneRec, 2025, section 3 (arXiv 2502.18965), without its mixture of experts"
SIZES: Sizes = {"layers": 2, "decoder_layers": 2, "heads": 2, "hidden": 4, "dropout": 0.1}
LINEAR = False


class CodeAttention(nn.Module):
    """Attention of positions on a sequence; through the kernel registry."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.output = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.both = nn.Linear(dim, 2 * dim, bias=False)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of positions [..., D], by head [..., heads, D / heads]."""
        k, v = self.both(x).unflatten(-1, (2 * self.heads, -1)).chunk(2, -2)
        return k, v

    def asks(self, x: Tensor) -> Tensor:
        """Queries by head."""
        return self.query(x).unflatten(-1, (self.heads, -1))  # type: ignore[no-any-return]

    def packed(self, x_TD: Tensor, mask: JaggedMask) -> Tensor:
        """Self-attention inside packed sequences."""
        found = kernels.op("attention")(self.asks(x_TD), *self.keys(x_TD), mask)
        return self.output(found.flatten(1))  # type: ignore[no-any-return]

    def dense(self, x_BSD: Tensor, kv: tuple[Tensor, Tensor], mask: Causal | Dense) -> Tensor:
        """Attention of [B, S, D] on keys and values [B, L, heads, D / heads]."""
        q, k, v = (t.transpose(1, 2) for t in (self.asks(x_BSD), *kv))
        found = kernels.op("attention")(q, k, v, mask)
        return self.output(found.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class CodeFeed(nn.Module):
    """The feed-forward part: SwiGLU."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, 2 * hidden, bias=False), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Of any positions."""
        gate, up = self.inner(x).chunk(2, -1)
        return self.outer(nn.functional.silu(gate) * up)  # type: ignore[no-any-return]


class HistoryLayer(nn.Module):
    """One layer of the encoder: every event sees every event."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = (nn.RMSNorm(dim, eps=1e-6) for _ in range(2))
        self.attend, self.feed = CodeAttention(dim, heads), CodeFeed(dim, hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, x_TD: Tensor, mask: JaggedMask) -> Tensor:
        """Packed events."""
        x_TD = x_TD + self.drop(self.attend.packed(self.norm_1(x_TD), mask))
        return x_TD + self.drop(self.feed(self.norm_2(x_TD)))  # type: ignore[no-any-return]


class CodeLayer(nn.Module):
    """One layer of the decoder: the id so far, then the events."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.norm_3 = (nn.RMSNorm(dim, eps=1e-6) for _ in range(3))
        self.own, self.cross = CodeAttention(dim, heads), CodeAttention(dim, heads)
        self.feed, self.drop = CodeFeed(dim, hidden), nn.Dropout(dropout)

    def forward(
        self,
        x_BSD: Tensor,
        own: tuple[Tensor, Tensor],
        events: tuple[Tensor, Tensor],
        seen: Dense,
    ) -> Tensor:
        """`own` are keys and values of the id so far, this position included."""
        x_BSD = x_BSD + self.drop(self.own.dense(self.norm_1(x_BSD), own, Causal()))
        x_BSD = x_BSD + self.drop(self.cross.dense(self.norm_2(x_BSD), events, seen))
        return x_BSD + self.drop(self.feed(self.norm_3(x_BSD)))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class DecoderCache:
    """What the decoder keeps of rows: keys and values of each layer [B, L, heads, D / heads]."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    seen_BL: Tensor

    def row(self, number: int) -> DecoderCache:
        """The same of one row, without its padding."""
        count = max(1, int(self.seen_BL[number].sum()))
        one = slice(number, number + 1)
        kept = tuple((k[one, :count], v[one, :count]) for k, v in self.layers)
        return DecoderCache(kept, self.seen_BL[one, :count])

    def repeated(self, count: int) -> DecoderCache:
        """One row for `count` ids, without a copy."""
        kept = tuple(
            (k.expand(count, -1, -1, -1), v.expand(count, -1, -1, -1)) for k, v in self.layers
        )
        return DecoderCache(kept, self.seen_BL.expand(count, -1))

    def each(self, count: int) -> DecoderCache:
        """Every row `count` times, one behind the other."""
        kept = tuple(
            (k.repeat_interleave(count, 0), v.repeat_interleave(count, 0)) for k, v in self.layers
        )
        return DecoderCache(kept, self.seen_BL.repeat_interleave(count, 0))


class OneRec(nn.Module):
    """An event is its item's row, its codes' rows, and how many events ago it was."""

    def __init__(
        self,
        shape: InputShape,
        layers: int,
        decoder_layers: int,
        heads: int,
        hidden: int,
        dropout: float,
    ) -> None:
        super().__init__()
        need_events(shape, "onerec")
        if not shape.codes:
            raise JoyError(
                "'onerec' writes semantic ids, and the job names none",
                where="task.codes",
                help="task: {name: generative, codes: FILE}; joymigrate train ids makes them",
            )
        dim, self.sizes = shape.dim, shape.codes
        self.codes = nn.ModuleList(nn.Embedding(size, dim) for size in self.sizes)
        self.ago = nn.Embedding(shape.events[0], dim)
        self.start = nn.Parameter(torch.zeros(dim))
        self.level = nn.Embedding(len(self.sizes), dim)
        for table in (*self.codes, self.ago, self.level):
            nn.init.normal_(table.weight, std=0.05)
        self.encoder = nn.ModuleList(
            HistoryLayer(dim, heads, hidden * dim, dropout) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            CodeLayer(dim, heads, hidden * dim, dropout) for _ in range(decoder_layers)
        )
        self.norm, self.end = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm(dim, eps=1e-6)
        self.heads = nn.ModuleList(nn.Linear(dim, size) for size in self.sizes)

    # -- the events ---------------------------------------------------------------------------

    def read(self, x: RowInputs) -> DecoderCache:
        """Encode the events of all rows."""
        rows_BLD, mask_BL, _ = x.events[0]
        codes_BLK, _ = x.codes_of(0)
        counts = mask_BL.sum(1)
        at = mask_BL.flatten().nonzero().squeeze(-1)
        length = mask_BL.shape[1]
        places = torch.arange(length, device=at.device)
        ago = (counts[:, None] - 1 - places).clamp(min=0).flatten()[at]
        x_TD = rows_BLD.flatten(0, 1)[at] + self.ago(ago)
        codes_TK = codes_BLK.flatten(0, 1)[at]
        for number, table in enumerate(self.codes):
            known = codes_TK[:, number] >= 0  # an item without an id has its row alone
            x_TD = x_TD + table(codes_TK[:, number].clamp(min=0)) * known[:, None]
        mask = JaggedMask(nn.functional.pad(counts.cumsum(0), (1, 0)), Full())
        for layer in self.encoder:
            x_TD = layer(x_TD, mask)
        packed = self.norm(x_TD)
        found = packed.new_zeros(mask_BL.numel(), packed.shape[1]).index_copy(0, at, packed)
        events_BLD = found.view(*mask_BL.shape, found.shape[-1])
        kept = tuple(layer.cross.keys(events_BLD) for layer in self.decoder)  # type: ignore[union-attr,operator]
        # Attention needs something to look at: a row without events sees one row of zeros.
        seen_BL = mask_BL | (places == 0)
        return DecoderCache(kept, seen_BL)

    # -- the id -------------------------------------------------------------------------------

    def embed(self, codes_BS: Tensor, first: int) -> Tensor:
        """What the decoder reads at levels `first` and on: the code before each [B, S, D]."""
        parts = []
        for place in range(codes_BS.shape[1]):
            level = first + place
            parts.append(self.embed_level(codes_BS[:, place], level))
        return torch.stack(parts, 1)

    def embed_level(self, codes_B: Tensor, level: int) -> Tensor:
        """What the decoder reads at one level [B, D]; the first one reads no code."""
        row = self.codes[level - 1](codes_B) if level else self.start.expand(len(codes_B), -1)
        found: Tensor = row + self.level.weight[level]
        return found

    def write(self, memory: DecoderCache, codes_BK: Tensor) -> list[Tensor]:
        """Logits of every level, given the levels before it [B, V] each; memory of B rows."""
        asked = torch.cat([codes_BK[:, :1], codes_BK[:, :-1]], 1)
        x_BKD = self.embed(asked, 0)
        seen = Dense(memory.seen_BL[:, None, None, :])
        for layer, events in zip(self.decoder, memory.layers, strict=True):
            own = layer.own.keys(layer.norm_1(x_BKD))  # type: ignore[union-attr,operator]
            x_BKD = layer(x_BKD, own, events, seen)
        x_BKD = self.end(x_BKD)
        return [head(x_BKD[:, level]) for level, head in enumerate(self.heads)]

    def forward(self, x: RowInputs) -> Tensor:
        """The candidate's log-probability given the events [B, 1]."""
        _, codes_BK = x.codes_of(0)
        return self.log_probability(self.write(self.read(x), codes_BK.clamp(min=0)), codes_BK)

    def log_probability(self, logits: list[Tensor], codes_BK: Tensor) -> Tensor:
        """Of whole ids [B, 1]; a level that is -1 (no id) counts nothing."""
        total = logits[0].new_zeros(len(codes_BK))
        for level, row in enumerate(logits):
            wanted = codes_BK[:, level]
            kind = torch.float64 if row.dtype is torch.float64 else torch.float32
            chosen = row.log_softmax(-1, dtype=kind).gather(1, wanted.clamp(min=0)[:, None])[:, 0]
            total = total + chosen * (wanted >= 0)
        return total[:, None]


MODEL = OneRec
