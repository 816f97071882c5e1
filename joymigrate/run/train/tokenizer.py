"""Tokenizers: the model's own, one from a folder, or the built-in one that knows bytes."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train.digests import of_text

BYTES = "bytes"
# ChatML: the form that Qwen and many others use; with the built-in tokenizer.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PAD, START, END, IM_START, IM_END = (
    "<|pad|>",
    "<|startoftext|>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
)


def load(name: str | None, model: Path | None, template: Path | None = None) -> Any:
    """The tokenizer of a folder, of the model, or the built-in one for a model without any."""
    if name == BYTES or (name is None and (model is None or not has_tokenizer(model))):
        made = byte_level()
    else:
        made = from_folder(Path(name) if name is not None else model)
    if made.pad_token_id is None:
        made.pad_token = made.eos_token or made.unk_token
    if template is not None:
        try:
            made.chat_template = template.read_text(encoding="utf-8")
        except OSError as error:
            raise JoyError(
                f"cannot read the chat template: {error.strerror}", where=str(template)
            ) from None
    return made


def has_tokenizer(folder: Path) -> bool:
    """Whether a model folder brings a tokenizer."""
    # Without any of these transformers makes an empty tokenizer and says nothing.
    patterns = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tokenization*.py")
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def from_folder(folder: Path | None) -> Any:
    """A tokenizer that lies in a folder; nothing is fetched from anywhere."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    from transformers import AutoTokenizer

    if folder is None or not folder.is_dir():
        raise JoyError(
            "no such tokenizer folder", where=str(folder), help="tokenizer: bytes needs none"
        )
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # files that are missing or too new surface as many types
        raise JoyError(
            f"cannot load a tokenizer: {str(error).splitlines()[0]}",
            where=str(folder),
            help="tokenizer: bytes works with every text",
        ) from None


def byte_level() -> Any:
    """256 bytes and five special tokens: 261 entries; any text comes back unchanged. A copy, as
    callers give it templates of their own."""
    return copy.deepcopy(build_byte_level())


@cache
def build_byte_level() -> Any:
    """The built-in tokenizer itself."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={sign: i for i, sign in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([PAD, START, END, IM_START, IM_END])
    make: Any = PreTrainedTokenizerFast
    return make(
        tokenizer_object=inner,
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        additional_special_tokens=[IM_START, IM_END],
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
    )


def digest(tokenizer: Any) -> str:
    """A hash of everything that decides which tokens a text gives."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(sorted_vocabulary(tokenizer))
    template = tokenizer.chat_template
    shown = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    specials = {key: str(value) for key, value in tokenizer.special_tokens_map.items()}
    return of_text(text, shown or "", json.dumps(specials, sort_keys=True))


def sorted_vocabulary(tokenizer: Any) -> list[tuple[str, int]]:
    """The vocabulary by number."""
    return sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])


def dtype_for(vocabulary: int) -> str:
    """The smallest type that holds every token."""
    return "uint16" if vocabulary <= 1 << 16 else "uint32"


def source_of(function: Callable[..., Any]) -> str:
    """A function's text, so that a changed one makes another cache."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return getattr(function, "__qualname__", repr(function))


def end_of_turn(tokenizer: Any) -> int | None:
    """The special token that follows an answer in the chat template; None where there is none."""
    if getattr(tokenizer, "chat_template", None) is None:
        return None
    mark = "joymigrate"
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
    text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    after = tokenizer(text.rpartition(mark)[2], add_special_tokens=False)["input_ids"]
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    return int(after[0]) if after and after[0] in special else None
