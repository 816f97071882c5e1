"""The tokenizer of a model folder: transformers' own, so that ids are those of AutoTokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import parse_object


class FolderTokens:
    """A folder's tokenizer. `hf` is the one of transformers, `backend` its fast core or None."""

    def __init__(self, hf: Any) -> None:
        self.hf = hf
        self.backend = getattr(hf, "backend_tokenizer", None) or getattr(hf, "_tokenizer", None)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text, with the tokens that begin and end one when `special`."""
        ids: list[int] = self.hf.encode(text, add_special_tokens=special)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of ids."""
        if self.backend is not None:
            text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special)
            return text
        plain: str = self.hf.decode(
            list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        return plain


class NumberTokens:
    """For a folder without tokenizer: requests bring ids, and there is no text."""

    hf = None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Raises `JoyError`: there is nothing to encode with."""
        raise JoyError("this model has no tokenizer: give token ids instead of text")

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Nothing."""
        return ""


def load_tokens(folder: Path, *, trust_remote_code: bool = False) -> FolderTokens | NumberTokens:
    """The tokenizer of a folder; `NumberTokens` when it has none. A broken one: `JoyError`."""
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    if not any((folder / name).is_file() for name in names):
        return NumberTokens()
    from joymigrate.chips import hide_driverless

    hide_driverless()
    from transformers import AutoTokenizer

    try:
        return FolderTokens(
            AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        )
    except Exception as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise JoyError(
            f"the tokenizer does not load: {line}",
            where=str(folder),
            help="--trust-remote-code runs the folder's own code, where it brings some",
        ) from error


def end_ids(folder: Path, config: Any, tokens: FolderTokens | NumberTokens) -> tuple[int, ...]:
    """Tokens that end a text: those of generation_config.json, else of the configuration, and of
    the tokenizer."""
    found: list[Any] = []
    path = folder / "generation_config.json"
    if path.is_file():
        found += ids_in(parse_object(path.read_bytes(), str(path)), str(path))
    if not found:
        found += as_list(getattr(config, "eos_token_id", None))
    if not found and tokens.hf is not None:
        found += as_list(getattr(tokens.hf, "eos_token_id", None))
    return tuple(dict.fromkeys(int(one) for one in found))


def ids_in(given: Mapping[str, Any], where: str) -> list[int]:
    """The `eos_token_id` of a file; raises `JoyError`."""
    found = as_list(given.get("eos_token_id"))
    if not all(type(one) is int for one in found):
        raise JoyError(
            f"eos_token_id is {given['eos_token_id']!r:.60}, but must be a token id or a list of "
            "them", where=where,
        )  # fmt: skip
    return found


def as_list(value: Any) -> list[Any]:
    """A value or a list of values as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
