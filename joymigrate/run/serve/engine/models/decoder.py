"""The generic decoder: Llama and the many models that differ from it in a few places.

Queries, keys and values come from one product, gate and up from another. T are packed tokens,
H query heads, N key/value heads, D the size of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.serve.engine.adapters import Selection
from joymigrate.run.serve.engine.batch import Batch
from joymigrate.run.serve.engine.cache import Cache, CacheShape
from joymigrate.run.serve.engine.linear import (
    Linear,
    LinearMaker,
    PlainLinear,
    QuantisedSource,
    dense,
)
from joymigrate.run.serve.engine.models.rotary import RotaryTables, halves
from joymigrate.run.serve.engine.models.spec import Spec
from joymigrate.run.serve.engine.pooling import HEAD
from joymigrate.run.serve.engine.share import ProcessShare
from joymigrate.run.serve.engine.weights import Weights

GELU = ("gelu_tanh",)


@dataclass(slots=True)
class Layer:
    """The parts of one layer; a norm that a family does not have is None."""

    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
    before_attention: Tensor | None
    after_attention: Tensor | None
    before_mlp: Tensor | None
    after_mlp: Tensor | None
    query_norm: Tensor | None  # [D] or [H·D]
    key_norm: Tensor | None


class DecoderModel:
    """A `Model` (see model.py) from a spec and a folder's weights."""

    path = "decoder"
    stateful = False
    state_bytes = 0

    def __init__(
        self,
        spec: Spec,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        *,
        prepack: bool = True,
        reader: QuantisedSource | None = None,
        share: ProcessShare | None = None,
        compile: bool = False,
    ) -> None:
        self.spec = spec
        self.config = spec.config
        self.family = spec.family
        self.dtype = dtype
        self.device = device
        self.share = share or ProcessShare()
        self.share.check(spec.heads, spec.kv_heads, spec.intermediate)
        self.heads = spec.heads // self.share.world
        self.kv_heads = spec.kv_heads // self.share.world
        self.vocabulary = spec.vocabulary
        self.positions = spec.positions
        self.rotary = RotaryTables(spec.config, dtype, device)
        self.changing_base = self.rotary.changes_above
        self.starts_over = spec.starts_over and self.changing_base is not None
        self.notes: tuple[str, ...] = ()
        self.selection = Selection()
        self.quantisation = reader.scheme if reader is not None else None
        maker = LinearMaker(weights, dtype, device, prepack=prepack, reader=reader)
        self.weights = weights
        self.embed = weights.get(f"{self.name('embed')}.weight", dtype).to(device)
        self.norm = self.norm_weight(self.name("norm"))
        self.layers = [self.load_layer(maker, i) for i in range(spec.layers)]
        self.head = self.load_head(maker)
        self.linear = ", ".join(sorted(maker.kinds))
        self.parameters, self.weight_bytes = count(weights, reader)
        self.shapes = [
            CacheShape(
                self.heads,
                self.kv_heads,
                spec.head_size,
                spec.head_size,
                spec.attention_scale,
                window,
                spec.softcap,
            )
            for window in spec.windows
        ]
        weights.close()
        self.enter, self.leave = self.before, self.after
        self.rms: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
        self.glu: Callable[[Tensor], Tensor] | None = None
        if compile:
            self.compile(maker.kinds)
        elif device.type != "cpu":
            self.take_kernels()

    def take_kernels(self) -> None:
        """The device's own norm and gate, as the kernel registry chooses them."""
        about: dict[str, Any] = {"device": self.device, "dtype": self.dtype}
        norm = kernels.op("rms_norm").choose(shape=(1, self.spec.hidden), **about)
        self.rms = norm.function
        if self.spec.activation not in GELU:
            shape = (1, self.spec.intermediate // self.share.world)
            self.glu = kernels.op("swiglu").choose(shape=shape, **about).function

    def compile(self, kinds: set[str]) -> None:
        """Compile what comes before and after attention, for any number of tokens at once. Raises
        `JoyError` where that cannot be: an explicit wish is never left out."""
        if kinds != {PlainLinear.kind}:
            raise JoyError(
                f"--compile takes plain weights, not {', '.join(sorted(kinds))}",
                help="serve quantised weights without --compile",
            )
        if self.share.world > 1:
            raise JoyError("--compile and --tensor-parallel do not go together")
        self.enter = torch.compile(self.before, dynamic=True)
        self.leave = torch.compile(self.after, dynamic=True)

    # -- loading

    def name(self, part: str, layer: int | None = None) -> str:
        """The name of a part's weights, without `.weight`."""
        named = self.spec.names.get(part)
        if named is None:
            raise JoyError(f"{self.family} has no weights for '{part}'")
        prefix = str(self.spec.names["layer"]).format(i=layer) + "." if layer is not None else ""
        return prefix + named

    def norm_weight(self, name: str) -> Tensor:
        """The weight of a norm, with what the family adds to it."""
        raw = self.weights.raw(f"{name}.weight")
        return (raw.float() + self.spec.norm_offset).to(self.device, self.dtype)

    def layer_norm(self, part: str, layer: int) -> Tensor | None:
        """The weight of a layer's norm, None where the family or the model has none."""
        if self.spec.names.get(part) is None:
            return None
        name = self.name(part, layer)
        optional = part in ("query_norm", "key_norm")
        if optional and f"{name}.weight" not in self.weights:
            return None
        return self.norm_weight(name)

    def load_layer(self, maker: LinearMaker, i: int) -> Layer:
        """Everything of layer i, or this process's share of it."""
        query_norm, key_norm = self.layer_norm("query_norm", i), self.layer_norm("key_norm", i)
        order = self.qkv_rows()
        if query_norm is not None and self.spec.interleaved:
            raise JoyError(f"{self.family}: norms of queries with interleaved rotary embeddings")
        if query_norm is not None and query_norm.numel() != self.spec.head_size:
            self.share.refuse("norms over all heads")
        return Layer(
            qkv=maker(self.qkv_names(i), rows=order),
            output=maker(
                [self.name("output", i)],
                columns=self.share.columns(self.spec.heads * self.spec.head_size),
                bias=self.share.rank == 0,
            ),
            gate_up=maker(self.mlp_names(i), rows=self.mlp_rows()),
            down=maker(
                [self.name("down", i)],
                columns=self.share.columns(self.spec.intermediate),
                bias=self.share.rank == 0,
            ),
            before_attention=self.layer_norm("before_attention", i),
            after_attention=self.layer_norm("after_attention", i),
            before_mlp=self.layer_norm("before_mlp", i),
            after_mlp=self.layer_norm("after_mlp", i),
            query_norm=query_norm,
            key_norm=key_norm,
        )

    def qkv_names(self, i: int) -> list[str]:
        """The linears that give queries, keys and values."""
        if self.spec.names.get("qkv"):
            return [self.name("qkv", i)]
        return [self.name(part, i) for part in ("queries", "keys", "values")]

    def mlp_names(self, i: int) -> list[str]:
        """The linears that give gate and up."""
        if self.spec.names.get("gate_up"):
            return [self.name("gate_up", i)]
        return [self.name("gate", i), self.name("up", i)]

    def qkv_rows(self) -> Tensor | None:
        """Which outputs of qkv this process computes, in the order it wants; None: as they are."""
        heads, kv_heads, size = self.spec.heads, self.spec.kv_heads, self.spec.head_size
        if not self.spec.interleaved and self.spec.layout == "stack" and self.share.world == 1:
            return None
        rows = torch.arange((heads + 2 * kv_heads) * size)
        if self.spec.layout == "grouped":
            per_group = rows.view(kv_heads, heads // kv_heads + 2, size)
            q, k, v = per_group[:, :-2].reshape(-1), per_group[:, -2].reshape(-1), per_group[:, -1]
        else:
            q, k, v = torch.split(rows, [heads * size, kv_heads * size, kv_heads * size])
        if self.spec.interleaved:
            q = q[halves(heads, size, self.rotary.size)]
            k = k[halves(kv_heads, size, self.rotary.size)]
        return torch.cat([self.share.part(part.reshape(-1)) for part in (q, k, v)])

    def mlp_rows(self) -> Tensor | None:
        """Which outputs of gate and up this process computes."""
        if self.share.world == 1:
            return None
        gate, up = torch.arange(2 * self.spec.intermediate).chunk(2)
        return torch.cat([self.share.part(gate), self.share.part(up)])

    def load_head(self, maker: LinearMaker) -> Linear:
        """The product that gives the logits."""
        name = self.name("head")
        if self.spec.normalised_head:
            weight = F.normalize(self.weights.get(f"{name}.weight").float())
            return dense(weight.to(self.device, self.dtype), None, prepack=maker.prepack)
        self.scores = HEAD in self.weights and f"{name}.weight" not in self.weights
        if not self.spec.tied and not self.weights.bare and not self.scores:
            return maker([name])
        return dense(self.embed, None, prepack=maker.prepack)

    # -- computing

    def hidden(self, batch: Batch, cache: Cache) -> Tensor:
        """The normalised states of `batch.rows`."""
        self.selection.groups = batch.adapters
        x = self.embed[batch.ids]
        if self.spec.embed_scale != 1.0:
            x = x * torch.tensor(self.spec.embed_scale, dtype=x.dtype)
        longest = max(batch.lengths) if isinstance(batch.lengths, tuple) else 0
        rotation = self.rotary.at(batch.positions, batch.spans, max(longest, batch.furthest))
        for i, layer in enumerate(self.layers):
            x = self.block(i, layer, x, rotation, batch, cache)
        return self.normalise(x[batch.rows], self.norm)

    def block(
        self,
        i: int,
        layer: Layer,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        batch: Batch,
        cache: Cache,
    ) -> Tensor:
        """One layer: what comes before its attention, the attention, and what comes after."""
        cos, sin = rotation if self.spec.rotates[i] else (None, None)
        q, k, v = self.enter(layer, x, cos, sin)
        shape = self.shapes[i]
        attended = cache.attend(
            i, q, k, v, batch, scale=shape.scale, window=shape.window, softcap=shape.softcap
        )
        return self.leave(layer, x, attended)

    def before(
        self, layer: Layer, x: Tensor, cos: Tensor | None, sin: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, D], keys and values [T, N, D] of a layer."""
        h = x if layer.before_attention is None else self.normalise(x, layer.before_attention)
        turned = self.heads + self.kv_heads
        qkv = layer.qkv(h).view(h.shape[0], turned + self.kv_heads, self.spec.head_size)
        qk_TZD = qkv[:, :turned]
        if layer.query_norm is not None and layer.key_norm is not None:
            qk_TZD = self.normalise_heads(qk_TZD, layer.query_norm, layer.key_norm)
        if cos is not None and sin is not None:
            qk_TZD = rotate(qk_TZD, cos, sin)
        return qk_TZD[:, : self.heads], qk_TZD[:, self.heads :], qkv[:, turned:]

    def after(self, layer: Layer, x: Tensor, attended_THD: Tensor) -> Tensor:
        """The states after a layer, from those before it and its attention."""
        h = self.share.sum(layer.output(attended_THD.reshape(x.shape[0], -1)))
        x = self.add(x, h, layer.after_attention)
        h = x if layer.before_mlp is None else self.normalise(x, layer.before_mlp)
        h = self.share.sum(layer.down(self.gated(layer.gate_up(h))))
        return self.add(x, h, layer.after_mlp)

    def gated(self, gate_up: Tensor) -> Tensor:
        """The activation of the gate, times up."""
        if self.glu is not None:
            return self.glu(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return self.activate(gate).mul_(up)

    def normalise(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root mean square norm."""
        return self.rms(x, weight, self.spec.eps)

    def normalise_heads(self, qk_TZD: Tensor, query_norm: Tensor, key_norm: Tensor) -> Tensor:
        """The norms of queries and keys: of each head, or of all heads together."""
        q, k = qk_TZD[:, : self.heads], qk_TZD[:, self.heads :]
        if query_norm.numel() == self.spec.head_size:
            q, k = self.normalise(q, query_norm), self.normalise(k, key_norm)
        else:
            q = self.normalise(q.flatten(1), query_norm).view_as(q)
            k = self.normalise(k.flatten(1), key_norm).view_as(k)
        return torch.cat((q, k), 1)

    def add(self, x: Tensor, h: Tensor, norm: Tensor | None) -> Tensor:
        """x and a part's output, normalised or scaled where the family does so."""
        if norm is not None:
            h = self.normalise(h, norm)
        if self.spec.residual_scale != 1.0:
            h = h * self.spec.residual_scale
        return x + h

    def activate(self, gate: Tensor) -> Tensor:
        """The activation of the gate; the result is a tensor of its own."""
        if self.spec.activation in GELU:
            return F.gelu(gate, approximate="tanh")
        return F.silu(gate)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, float32."""
        scores = self.head(hidden)
        if self.spec.logit_divisor != 1.0:
            scores = scores / self.spec.logit_divisor
        cap = self.spec.final_softcap
        if cap is not None:
            scores = torch.tanh(scores / cap) * cap
        return scores.float()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """torch's own root mean square norm."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def rotate(x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of halves: x·cos + swapped(x)·sin, the first half of sin negated. What of a
    head goes beyond cos stays as it is."""
    size = cos.shape[-1]
    turned = x_THD if x_THD.shape[-1] == size else x_THD[..., :size]
    result = torch.addcmul(turned * cos, turned.roll(size // 2, -1), sin)
    return result if turned is x_THD else torch.cat((result, x_THD[..., size:]), -1)


def count(weights: Weights, reader: QuantisedSource | None = None) -> tuple[int, int]:
    """Numbers of the model, and bytes, of the tensors that were taken."""
    taken: list[Any] = [(name, weights.raw(name)) for name in weights.taken]
    numbers = sum(reader.numbers(n, t) if reader is not None else t.numel() for n, t in taken)
    return numbers, sum(t.numel() * t.element_size() for _, t in taken)
