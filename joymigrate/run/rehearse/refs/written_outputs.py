"""The `.out` forms of attention: the outputs go into given tensors, a workspace is ignored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.fusion_attention import (
    npu_fusion_attention_grad_v3,
    npu_fusion_attention_v3,
)
from joymigrate.run.rehearse.refs.infer_attention import (
    npu_fused_infer_attention_score,
    npu_fused_infer_attention_score_v2,
)

SOURCE = "op-plugin op_plugin_functions.yaml; the semantics are those of the functional form"


def into(targets: Sequence[Tensor], values: Sequence[Any]) -> tuple[Tensor, ...]:
    """Copy what there is; an output that was not asked for leaves its target as it is."""
    for target, value in zip(targets, values, strict=True):
        if isinstance(value, Tensor) and value.numel():
            target.copy_(value)
        elif not isinstance(value, Tensor) and value is not None:
            target.fill_(value)
    return tuple(targets)


def with_outputs(function: Callable[..., Any]) -> Callable[..., tuple[Tensor, ...]]:
    """`function` with the arguments `workspace` and `out` of its other form."""

    def written(**given: Any) -> tuple[Tensor, ...]:
        out = given.pop("out")
        given.pop("workspace", None)
        return into(out, function(**given))

    return written


_FORMS: dict[str, Callable[..., Any]] = {
    "npu_fused_infer_attention_score.out": npu_fused_infer_attention_score,
    "npu_fused_infer_attention_score_v2.out": npu_fused_infer_attention_score_v2,
    "npu_fusion_attention_v3.out": npu_fusion_attention_v3,
    "npu_fusion_attention_grad_v3.out": npu_fusion_attention_grad_v3,
}
for _name, _function in _FORMS.items():
    reference(_name, source=SOURCE)(with_outputs(_function))
