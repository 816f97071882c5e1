"""DeepSpeed's settings, known by their keys: what the target does not support."""

from __future__ import annotations

from typing import Any

from joymigrate.language import Text
from joymigrate.rewrite.readers._migration_map import Sites
from joymigrate.rewrite.readers._tree import Mapping, Node, ScalarNode

RULE = "JM192"
KEYS = frozenset(
    (
        *("zero_optimization", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        *("fp16", "bf16", "zero_allow_untested_optimizer", "train_batch_size"),
    )
)


def settings(sites: Sites, root: Node) -> None:
    """Advice on one file of settings; nothing for any other file."""
    if not isinstance(root, Mapping) or root.get("zero_optimization") is None:
        return
    if sum(1 for entry in root.entries if entry.key.value in KEYS) < 2:
        return
    known: dict[str, Any] = dict(sites.context.chip.launch.get("deepspeed") or {})
    for entry in root.entries:
        if entry.key.value in (known.get("unsupported") or ()) and not is_off(entry.value):
            reason = Text(
                "{key} of DeepSpeed does not run on {chip}",
                key=entry.key.value,
                chip=sites.context.chip.title,
            )
            sites.add(RULE, entry.key.start, entry.key.end, reason=reason)


def is_off(node: Node) -> bool:
    """Whether a section says `enabled: false` or is false itself."""
    text = node.text("enabled") if isinstance(node, Mapping) else None
    if isinstance(node, ScalarNode):
        text = node.value
    return (text or "true").lower() in ("false", "no", "off", "null")
