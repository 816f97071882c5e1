"""Makes a model's configuration tiny, by the names that configurations use for their sizes.

Nothing here knows a single model: what a family calls otherwise stays as large as it was, which
its check then says.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

LAYERS = 2
# Name of a size → its tiny value. Divisible by each other, so that heads and groups fit.
SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim"), 32),
    **dict.fromkeys(("model_dim", "encoder_hidden_dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim"), 64),
    **dict.fromkeys(("decoder_ffn_dim", "mlp_dim", "ffn_hidden_size", "feed_forward_size"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth"), LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("num_encoder_layers", "num_block_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size", "v_head_dim"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "rotary_dim"), 8),
    "qk_head_dim": 16,  # both together
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "experts_per_token"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    **dict.fromkeys(("vocab_size", "bert_vocab_size"), 512),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions"), 128),
    **dict.fromkeys(("max_target_positions", "n_ctx", "max_seq_len"), 128),
    **dict.fromkeys(("image_size",), 32),
    **dict.fromkeys(("embedding_size", "out_hidden_size"), 32),
    "patch_size": 8,
}
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def tiny(kind: str) -> Any:
    """The tiny configuration of a family of transformers."""
    from transformers import CONFIG_MAPPING

    made = CONFIG_MAPPING[kind]()
    return shrink(made)


def shrink(config: Any) -> Any:
    """`config` itself, its parts first, with small sizes."""
    for name in getattr(config, "sub_configs", {}) or {}:
        part = getattr(config, name, None)
        if part is not None:
            shrink(part)
    before = config.to_dict()
    names = {**before, **dict.fromkeys(getattr(config, "attribute_map", {}))}
    for name, size in SIZES.items():
        if name not in names:
            continue
        now = getattr(config, name, None)
        derived = now is None and name == "head_dim"  # some derive it, some do not
        if derived or (isinstance(now, int) and not isinstance(now, bool) and now > size):
            setattr(config, name, size)
    if "kv_lora_rank" in names and "num_key_value_heads" in names:
        config.num_key_value_heads = config.num_attention_heads  # latent attention has no groups
    if getattr(config, "is_encoder_decoder", False) and not hasattr(
        config, "decoder_start_token_id"
    ):
        config.decoder_start_token_id = 0  # where a decoder starts when it shifts labels itself
    shorten(config, before)
    settle_tokens(config)
    return config


def shorten(config: Any, before: Mapping[str, Any]) -> None:
    """Lists with one entry per layer keep the kinds that occur, once each where that fits."""
    layers = next(
        (before[n] for n in ("num_hidden_layers", "n_layer", "num_layers") if before.get(n)), None
    )
    for name, value in before.items():
        if isinstance(value, list) and layers and len(value) == layers and layers > LAYERS:
            kinds = list(dict.fromkeys(map(str, value)))
            first = [next(v for v in value if str(v) == kind) for kind in kinds]
            setattr(config, name, (first * LAYERS)[:LAYERS])
    rope = getattr(config, "rope_parameters", None)
    images = "_vl" in str(getattr(config, "model_type", ""))
    if isinstance(rope, dict) and (images or "mrope_section" in rope):
        rope["mrope_section"] = [1, 1, 2]


def settle_tokens(config: Any) -> None:
    """Numbers of special tokens lie inside the small vocabulary, each its own."""
    size = getattr(config, "vocab_size", None)
    if not isinstance(size, int):
        parts = (getattr(config, n, None) for n in ("text_config", "decoder"))
        size = next((p.vocab_size for p in parts if p is not None and hasattr(p, "vocab_size")), 0)
    if not size:
        return
    taken = 0
    for name in config.to_dict():
        value = getattr(config, name, None)
        if not name.endswith(("token_id", "token_index")):
            continue
        if isinstance(value, int) and value >= size:
            taken += 1
            setattr(config, name, TOKENS.index(name) if name in TOKENS else size - taken)
        elif isinstance(value, list) and any(isinstance(v, int) and v >= size for v in value):
            setattr(config, name, [2])


def tiny_arguments(kind: Any) -> dict[str, Any]:
    """Small sizes for a class of diffusers, from the defaults of its constructor."""
    known = {
        name: p.default
        for name, p in inspect.signature(kind.__init__).parameters.items()
        if p.default is not inspect.Parameter.empty
    }
    made: dict[str, Any] = {}
    for name, value in known.items():
        if name in ("sample_size",):
            made[name] = 8
        elif "layers" in name and isinstance(value, int) and value > LAYERS:
            made[name] = 1
        elif name == "block_out_channels":
            made[name] = tuple(32 * (1 + (n > 0)) for n in range(len(value)))
        elif name in ("layers_per_block",) and isinstance(value, int):
            made[name] = 1
        elif name == "num_attention_heads" and isinstance(value, int):
            made[name] = 2
        elif name in ("joint_attention_dim", "pooled_projection_dim", "caption_channels"):
            made[name] = 32 if isinstance(value, int) else value
    if "block_out_channels" in known:  # UNets
        made |= {"norm_num_groups": 8, "attention_head_dim": 8}
        if "cross_attention_dim" in known:
            made["cross_attention_dim"] = 32
        return {name: value for name, value in made.items() if name in known}
    return scale_widths(known, made)


def scale_widths(known: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Widths that are heads x head size by default follow the smaller number of heads."""
    heads, size = known.get("num_attention_heads"), known.get("attention_head_dim")
    if isinstance(heads, int) and isinstance(size, int):
        for name, value in known.items():
            if value == heads * size:
                made[name] = made["num_attention_heads"] * size
    return made
