"""A Llama of two layers with its tokenizer, and rows of text: tiny_llama.py MODEL ROWS_FOLDER KIND.

KIND is `text` (rows to go on training on) or `preference` (a prompt, a better and a worse answer).
"""

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from joymigrate.chips import hide_driverless

hide_driverless()  # transformers would ask for a chip's package that has no driver here
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

WORDS = "the a red blue small big cat dog tree house sees likes finds under near".split()  # noqa: SIM905
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]


def main(model: str, folder: str, kind: str) -> None:
    """Write the model and 32 rows."""
    words = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=plain, **names).save_pretrained(model)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        bos_token_id=1, eos_token_id=2, pad_token_id=3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(model)
    draw = random.Random(0)

    def said(length: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(length))

    rows = [
        {"text": said(12)}
        if kind == "text"
        else {"prompt": said(5), "chosen": f" {said(6)}", "rejected": f" {said(6)}"}
        for _ in range(32)
    ]
    Path(folder).mkdir(parents=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    Path(folder, "train.jsonl").write_text(text, encoding="utf-8")


main(*sys.argv[1:])
