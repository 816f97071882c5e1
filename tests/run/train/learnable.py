"""Small data sets that can be learned in a few dozen steps, one per task."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
VIT = {
    "model_type": "vit",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 8,
}
T5 = {
    "model_type": "t5",
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 4,
    "dropout_rate": 0.0,
}
QWEN2VL = {
    "model_type": "qwen2_vl",
    "text_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [1, 1, 2],
        },
    },
    "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4},
}
UNET = {"model_type": "unet-2d-condition", "block_out_channels": [16, 32], "text_width": 16}
CITIES, STREETS = ("北京市", "上海市", "广州市"), ("中山路", "人民路", "解放路")
COLORS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (20, 40, 230)}


def image(folder: Path, name: str, color: tuple[int, int, int], size: int, draw: Any) -> str:
    """A noisy image of one colour."""
    from PIL import Image

    made = Image.new("RGB", (size, size))
    made.putdata(
        [
            tuple(max(0, min(255, part + draw.randint(-20, 20))) for part in color)
            for _ in range(size * size)
        ]
    )
    made.save(folder / name)
    return name


def address(draw: random.Random) -> dict[str, Any]:
    """An address with its parts."""
    text, entities = "", []
    for label, piece in (
        ("city", draw.choice(CITIES)),
        ("road", draw.choice(STREETS)),
        ("number", f"{draw.randint(1, 99)}号"),
    ):
        entities.append({"start": len(text), "end": len(text) + len(piece), "label": label})
        text += piece
    return {"text": text, "entities": entities}


def records(task: str, folder: Path, draw: random.Random) -> Any:
    """Endless records of a task."""
    number = 0
    while True:
        number += 1
        letter = draw.choice("abc")
        rest = "".join(draw.choices("xyz", k=6))
        if task in ("dpo", "reward"):
            yield {"prompt": f"{rest}:", "chosen": "yes", "rejected": "no"}
        elif task == "classification":
            yield {"text": f"{rest}{letter}", "label": f"is-{letter}"}
        elif task == "token-classification":
            yield address(draw)
        elif task == "regression":
            count = draw.randint(0, 6)
            yield {"text": "a" * count + "b" * (6 - count), "score": count / 6}
        elif task == "ranking":
            documents = ["good" + rest, "bad" + rest, "poor" + rest]
            marks = [1, 0, 0]
            order = draw.sample(range(3), 3)
            yield {
                "query": "q",
                "documents": [documents[i] for i in order],
                "relevance": [marks[i] for i in order],
            }
        elif task == "embedding":
            word = "".join(draw.choices("abcdefgh", k=4))
            yield {"anchor": word * 2, "positive": word.upper() + word}
        elif task == "tool-selection":
            name = draw.choice(["weather", "clock"])
            asked = {"weather": "wwwwwwww", "clock": "cccccccc"}[name]
            yield {
                "query": asked,
                "tools": [{"name": "clock"}, {"name": "weather"}],
                "call": {"name": name, "arguments": {}},
            }
        elif task in ("image-classification", "image-text", "text-to-image"):
            color = draw.choice(sorted(COLORS))
            size = 16 if task != "image-text" else 28
            path = image(folder, f"{task}-{number}.png", COLORS[color], size, draw)
            yield {
                "image-classification": {"image": path, "label": color},
                "image-text": {"image": path, "prompt": "?", "completion": color[0]},
                "text-to-image": {"image": path, "caption": color},
            }[task]
        elif task == "ctr":
            user, price = draw.choice("uvwx"), draw.random() * 10
            share = 0.9 if (user in "uv") == (letter == "a") else 0.1
            yield {
                "user": user,
                "item": letter,
                "price": price,
                "label": int(draw.random() < share),
            }
        elif task == "seq2seq":
            yield {"source": letter * 4, "target": letter.upper()}
        elif task == "masked-lm":
            yield {"text": "abcabcabc" + letter}
        else:
            raise AssertionError(task)


def write(task: str, folder: Path, name: str, count: int, seed: int) -> Path:
    """A data file."""
    made = records(task, folder, random.Random(seed))
    path = folder / name
    path.write_text("".join(json.dumps(next(made)) + "\n" for _ in range(count)))
    return path
