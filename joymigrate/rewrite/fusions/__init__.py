"""Operations written out that a chip has as one operator.

What a place means is read from Python's own syntax tree with names and scopes (`norms`, `gates`,
`attention`). What takes the place of one expression is written as text (`expressions`). `codemods`
are libcst codemods like those that a project brings (docs/how-to/codemods.md): they are loaded,
and a file's tree of libcst is made, only where they have a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from joymigrate.rewrite.fusions.attention import attentions
from joymigrate.rewrite.fusions.chip_calls import Fusion, Place
from joymigrate.rewrite.fusions.gates import rotary_embeddings, swiglus
from joymigrate.rewrite.fusions.norms import rms_norms
from joymigrate.rewrite.module import Module

Find = Callable[[Module, str], Iterator[Place]]
# Rule: a word of its files, the name of the call in the chip's `fused.yaml`, what finds it.
FORMS: Mapping[str, tuple[str, str, Find]] = {
    "JM231": ("rsqrt", "rms_norm", rms_norms),
    "JM232": ("rotate_half", "rotary", rotary_embeddings),
    "JM233": ("silu", "swiglu", swiglus),
    "JM234": ("softmax(", "attention", attentions),
}


def places(module: Module, rule: str) -> dict[tuple[int, int], Fusion]:
    """Places of one rule by their span in the text; none where the chip lacks the call."""
    word, call, find = FORMS[rule]
    template = ((module.context.chip.data("fused.yaml") or {}).get("fused") or {}).get(call)
    if template is None or word not in module.source.text:
        return {}
    return dict(find(module, template))
