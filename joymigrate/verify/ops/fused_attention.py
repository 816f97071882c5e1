"""What a chip's fused attention has to give, from torch's own attention: no CPU has its kernels.

The arguments mean what the vendor's schema says. A call that torch's attention can't express
(dropout, a bias, packed sequences, sinks) raises `NoGolden`, and so does one with a row that sees
no key: what that row becomes is the kernel's own choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from joymigrate.verify.tape_entries import device_types

# Where the sequence and the heads stand; in the layouts with H the heads share the last dimension.
TO_BNSD = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (1, 2, 0, 3)}
FROM_BNSD = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (2, 0, 1, 3)}
JOINED = ("BSH", "SBH")
GIVEN, WHOLE, CAUSAL, CAUSAL_AT_THE_END = range(4)  # sparse_mode; above stand bands and prefixes
COMPRESSED = (CAUSAL, CAUSAL_AT_THE_END)  # the mask is a constant, only the mode is read
INEXPRESSIBLE = (
    *("pse", "padding_mask", "prefix", "actual_seq_qlen", "actual_seq_kvlen", "sink"),
    *("query_rope", "key_rope", "q_start_idx", "kv_start_idx", "dropout_mask"),
)
STATISTICS = 8  # how often the maximum and the sum of a row stand side by side
Given = dict[str, Any]


class NoGolden(Exception):
    """Torch's own attention has no such call."""


def attend(given: Mapping[str, Any]) -> list[Tensor]:
    """The output in the call's layout, and the maximum and sum of each row's scores."""
    refuse_inexpressible(given)
    q, k, v = (to_bnsd(given, name) for name in ("query", "key", "value"))
    visible = find_visible(given, q.shape[2], k.shape[2])
    scale = float(given.get("scale", given.get("scale_value", 1.0)))
    grouped = q.shape[1] != k.shape[1]
    made = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=scale, enable_gqa=grouped
    )
    wide = torch.promote_types(q.dtype, torch.float32)
    keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1).to(wide)
    scores = q.detach().to(wide) @ keys.detach().transpose(-1, -2) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    largest = scores.amax(-1, keepdim=True)
    total = (scores - largest).exp().sum(-1, keepdim=True)
    layout = given["input_layout"].upper()
    output = made.permute(FROM_BNSD[layout])
    output = output.flatten(2) if layout in JOINED else output
    return [output, *(one.expand(*one.shape[:3], STATISTICS) for one in (largest, total))]


def differentiate(given: Mapping[str, Any]) -> list[Tensor]:
    """The gradients of query, key and value for the output's gradient `dy`."""
    inputs = [given[name].detach().requires_grad_() for name in ("query", "key", "value")]
    with torch.enable_grad():
        names = dict(zip(("query", "key", "value"), inputs, strict=True))
        output = attend({**given, **names})[0]
    return list(torch.autograd.grad(output, inputs, given["dy"].reshape(output.shape)))


def refuse_inexpressible(given: Mapping[str, Any]) -> None:
    """Raise for what torch's attention can't say."""
    layout, mode = str(given["input_layout"]).upper(), int(given.get("sparse_mode") or 0)
    found = [name for name in INEXPRESSIBLE if given.get(name) is not None]
    if layout not in TO_BNSD:
        found.append(f"layout {layout}")
    if given.get("keep_prob", 1.0) != 1.0:
        found.append("dropout")
    if mode not in (GIVEN, WHOLE, *COMPRESSED):
        found.append(f"sparse_mode {mode}")
    if found:
        raise NoGolden(f"torch's attention has no {', '.join(found)}")


def to_bnsd(given: Mapping[str, Any], name: str) -> Tensor:
    """One input with batch, heads, sequence and head size in this order."""
    layout, value = given["input_layout"].upper(), given[name]
    if layout in JOINED:
        size = given["query"].shape[-1] // given["head_num"]
        size = size if name != "value" else value.shape[-1] * size // given["key"].shape[-1]
        value = value.reshape(*value.shape[:-1], -1, size)
    moved: Tensor = value.permute(TO_BNSD[layout])
    return moved


def find_visible(given: Mapping[str, Any], rows: int, columns: int) -> Tensor | None:
    """Which keys each row sees; None for all. Without a mask no mode hides anything."""
    mask, mode = given.get("atten_mask"), int(given.get("sparse_mode") or 0)
    if mask is None:
        return None
    if mode in COMPRESSED:
        first = columns - rows if mode == CAUSAL_AT_THE_END else 0
        visible = torch.ones(rows, columns, dtype=torch.bool).tril(first)
    else:
        visible = ~mask[..., :rows, :columns].bool()
        before, after = (find_reach(given, name) for name in ("pre_tockens", "next_tockens"))
        if mode == GIVEN and min(before, after) < rows + columns:
            visible = visible & torch.ones(rows, columns, dtype=torch.bool).tril(after)
            visible = visible & torch.ones(rows, columns, dtype=torch.bool).triu(-before)
    if not visible.any(-1).all():
        raise NoGolden("a row sees no key, and torch's attention gives no number for it")
    return visible


def find_reach(given: Mapping[str, Any], name: str) -> int:
    """How far a row sees, by both spellings of the schemas."""
    found = given.get(name, given.get(name.replace("tockens", "tokens")))
    return 2**31 - 1 if found is None else int(found)


def settle(
    names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Drawn inputs as the kernel is promised them: the mask that a mode stands for, and of a
    gradient what its forward call made. Nobody reads a seed without dropout."""
    given = name_arguments(names, args, kwargs)
    refuse_inexpressible(given)
    made: Given = {name: None for name in ("seed", "offset") if torch.is_tensor(given.get(name))}
    mask = given.get("atten_mask")
    if mask is not None and int(given.get("sparse_mode") or 0) in COMPRESSED:
        made["atten_mask"] = torch.ones_like(mask).triu(1)
    if "dy" in given:
        results = attend({**given, **made})
        for name, value in zip(
            ("attention_in", "softmax_max", "softmax_sum"), results, strict=True
        ):
            made[name] = value.to(given[name].dtype).contiguous()
    changed = {**given, **made}
    first = [changed.pop(name) for name in names[: len(args)]]
    return first, changed


# Each with what it must give: the first results of the operator; those behind are not compared.
GOLDENS: Mapping[str, Callable[[Mapping[str, Any]], list[Tensor]]] = {
    f"{device}_fusion_attention{form}{version}": compute
    for device in sorted(device_types())
    for form, compute in (("", attend), ("_grad", differentiate))
    for version in ("", "_v2", "_v3")
}


def name_arguments(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Given:
    """The arguments of a call by the names of its schema."""
    return {**dict(zip(names, args, strict=False)), **kwargs}
