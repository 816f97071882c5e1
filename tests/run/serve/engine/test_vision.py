"""Images: families that see, with tiny random weights, continue as transformers does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.types import EngineOptions, Request
from tests.run.serve.engine.models import drain, greedy, tokens

IMAGE, START, END = 100, 102, 103


TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 120,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
DEEP = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 16,
    "out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1],
}  # fmt: skip
# Of each family: what its text part has besides, and its vision part. Windows of 56 pixels and
# layers of all patches in turn, features behind the first two layers, experts.
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ({}, {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 4,
                      "patch_size": 14, "mlp_ratio": 2}),
    "qwen2_5_vl": ({}, {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4,
                        "patch_size": 14, "out_hidden_size": 64, "window_size": 56,
                        "fullatt_block_indexes": [1]}),
    "qwen3_vl": ({}, DEEP),
    "qwen3_vl_moe": ({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
                     DEEP),
}  # fmt: skip


def make_vision(
    family: str,
    folder: Path,
    vocabulary: int = 120,
    ids: tuple[int, int, int] = (IMAGE, START, END),
) -> tuple[Path, Any, Any]:
    """The folder, the model and the processor of images; `ids` of an image, its start and end."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    torch.manual_seed(0)
    text, vision = FAMILIES[family]
    config = AutoConfig.for_model(
        family,
        text_config={**TEXT, **text, "vocab_size": vocabulary},
        vision_config=vision,
        image_token_id=ids[0],
        video_token_id=101,
        vision_start_token_id=ids[1],
        vision_end_token_id=ids[2],
    )
    made = AutoModelForImageTextToText.from_config(config).float().eval()
    for weight in made.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
    made.save_pretrained(folder)
    side = vision["patch_size"]
    processor = Qwen2VLImageProcessorPil(max_pixels=(2 * side) ** 2 * 16, patch_size=side)
    processor.save_pretrained(folder)
    return folder, made, processor


@pytest.fixture(scope="module", params=list(FAMILIES))
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any, Any]:
    return make_vision(request.param, tmp_path_factory.mktemp("vl"))


def picture(seed: int, width: int, height: int) -> Any:
    import numpy as np
    from PIL import Image

    source = np.random.default_rng(seed)
    return Image.fromarray(source.integers(0, 255, (height, width, 3), dtype=np.uint8))


def prompt(images: int, seed: int = 0) -> list[int]:
    source = random.Random(seed)
    ids = [source.randrange(99) for _ in range(5)]
    for _ in range(images):
        ids += [START, IMAGE, END, *(source.randrange(99) for _ in range(4))]
    return ids


def wanted(
    model: tuple[Path, Any, Any], ids: list[int], images: list[Any], count: int, mark: int = IMAGE
) -> list[int]:
    """What transformers appends to a prompt with images."""
    import torch

    _, made, processor = model
    made.model.rope_deltas = None
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    if images:
        read = processor(images=images, return_tensors="pt")
        counts = iter((read["image_grid_thw"].prod(-1) // 4).tolist())
        wide = [t for token in ids for t in [token] * (next(counts) if token == mark else 1)]
        row = torch.tensor([wide])
        inputs = {"input_ids": row, "mm_token_type_ids": (row == mark).int(), **read}
    with torch.inference_mode():
        got = made.generate(**inputs, max_new_tokens=count, do_sample=False)
    return got[0, inputs["input_ids"].shape[1] :].tolist()  # type: ignore[no-any-return]


def test_texts_with_and_without_images_in_one_batch(model: tuple[Path, Any, Any]) -> None:
    options = EngineOptions(max_batch_tokens=20, kv_blocks=64, block_size=4)
    engine = load_engine(model[0], options).engine
    first = [picture(1, 100, 60)]
    jobs = [
        (prompt(1), first),
        (prompt(0, 1), []),
        (prompt(2, 2), [picture(2, 40, 90), picture(3, 120, 110)]),
        (prompt(1), [picture(4, 100, 60)]),  # the same prompt, another image of the same size
        (prompt(1), first),
    ]
    for i, (ids, images) in enumerate(jobs):
        engine.add(Request(str(i), tuple(ids), greedy(10, ignore_eos=True), images=tuple(images)))
    found = drain(engine)
    for i, (ids, images) in enumerate(jobs):
        assert tokens(found[str(i), 0]) == wanted(model, ids, images, 10)
    assert engine.stats().blocks_used == 0


def test_the_same_image_is_found_in_the_cache_and_another_is_not(
    model: tuple[Path, Any, Any],
) -> None:
    engine = load_engine(model[0], EngineOptions(kv_blocks=64, block_size=4)).engine
    cached = []
    for name, seed in (("a", 1), ("b", 2), ("c", 1)):
        request = Request(name, tuple(prompt(1)), greedy(2), images=(picture(seed, 100, 60),))
        engine.add(request)
        cached.append(drain(engine)[name, 0][-1].cached_tokens)
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


def test_placeholders_and_images_must_agree(model: tuple[Path, Any, Any]) -> None:
    engine = load_engine(model[0], EngineOptions(kv_blocks=64, block_size=4)).engine
    with pytest.raises(JoyError, match="1 image placeholders for 2 images"):
        engine.add(Request("a", tuple(prompt(1)), images=(picture(1, 40, 40), picture(2, 40, 40))))
