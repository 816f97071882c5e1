"""Operators without a reference: why, and stand-ins that say so.

Most of them fail clearly in the vendor's own code, which asks for a chip kernel by name. Those of
the older kernel interface would end the process there; a stand-in raises before that.
"""

from __future__ import annotations

from typing import Any, NoReturn

from joymigrate.run.rehearse.refs.declaration import Reference, signatures

OLDER_INTERFACE = """
    npu_batch_nms npu_fused_attention_layernorm_qkv_fwd npu_fused_attention_qkv_grad
    npu_fused_attention_score npu_fused_attention_score_backward npu_fused_attention_score_fwd
    npu_fused_attention_score_grad npu_grid_assign_positive npu_ifmr npu_multi_head_attention
    npu_multi_head_attention_backward npu_ps_roi_pooling npu_random_choice_with_mask
    npu_stride_add npu_sub_sample
""".split()  # noqa: SIM905  a list of quoted names would take four times the lines
NOTHING = "its kernel on the CPU"


def refusing(name: str) -> Reference:
    """A reference that raises `Unsimulated` whatever it is given."""

    def function(*_args: Any, **_kwargs: Any) -> NoReturn:
        from joymigrate.run.rehearse.refs.dtypes import Unsimulated  # imports torch

        raise Unsimulated(name.split("::")[1], NOTHING)

    return Reference(name, function, signatures()[name], "none")


def stand_ins() -> dict[str, Reference]:
    """By dispatcher name."""
    return {name: refusing(name) for name in (f"npu::{base}" for base in OLDER_INTERFACE)}
