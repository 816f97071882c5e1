"""Tokens as text: encoding prompts, and how single tokens are shown beside log-probabilities."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.tokens import FolderTokens, NumberTokens
from joymigrate.run.serve.web.errors import HttpRefusal

CACHED = 2**16
# Stands inside a client's `<|im_end|>`; nobody outside of this process can write it.
BREAK = f"\ue002{secrets.token_hex(8)}\ue003"


class ModelTokens:
    """The tokenizer of one model, with what the APIs ask of it."""

    def __init__(self, tokens: FolderTokens | NumberTokens, vocabulary: int) -> None:
        """`vocabulary` is the number of ids that the model knows."""
        self.tokens, self.vocabulary = tokens, vocabulary
        self.shown: dict[int, tuple[str, bytes]] = {}
        self.marks = marks_of(tokens)
        self.letters = byte_letters() if is_byte_level(tokens) else None

    def guard(self, value: Any) -> Any:
        """What a client wrote, its marks of the model's own language (`<|im_end|>`) broken up, so
        that `encode` reads them as the text they are."""
        if isinstance(value, str):
            return self.marks.sub(broken_up, value) if self.marks is not None else value
        if isinstance(value, list):
            return [self.guard(one) for one in value]
        if isinstance(value, dict):
            return {key: self.guard(one) for key, one in value.items()}
        return value

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text; `special` adds what the tokenizer puts around every text."""
        first, *others = text.split(BREAK)
        ids = self.encode_piece(first, special=special)
        for piece in others:
            ids += self.encode_piece(piece, special=False)
        return ids

    def encode_piece(self, text: str, *, special: bool) -> list[int]:
        """The ids of a text without a break."""
        try:
            return self.tokens.encode(text, special=special)
        except JoyError as error:
            raise HttpRefusal(400, error.what, param="prompt") from None
        except Exception as error:  # the tokenizer's own errors have no common class
            raise HttpRefusal(400, f"the text cannot be encoded: {error}", param="prompt") from None

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of some ids."""
        return self.tokens.decode(ids, skip_special=skip_special)

    def check(self, ids: Sequence[int], param: str) -> None:
        """Refuse ids that the model does not know."""
        for token in ids:
            if not 0 <= token < self.vocabulary:
                raise HttpRefusal(
                    400,
                    f"token id {token} is not in 0 to {self.vocabulary - 1}",
                    param=param,
                )

    def show(self, token: int) -> tuple[str, bytes]:
        """One token as text and as bytes. A part of a character shows as `bytes:\\x..`."""
        found = self.shown.get(token)
        if found is None:
            if len(self.shown) >= CACHED:
                self.shown.clear()
            found = self.shown[token] = self.looked_up(token)
        return found

    def looked_up(self, token: int) -> tuple[str, bytes]:
        hf = self.tokens.hf
        if hf is None:
            return f"token_id:{token}", b""
        name = hf.convert_ids_to_tokens(token)
        raw = None
        if name is not None and token not in hf.all_special_ids:
            raw = self.raw(str(name))
        if raw is None:
            raw = self.decode([token]).encode()
        try:
            return raw.decode(), raw
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw

    def raw(self, name: str) -> bytes | None:
        """The bytes of a token by its name in the vocabulary, where that says them."""
        if self.letters is not None:
            found = [self.letters.get(letter) for letter in name]
            return None if None in found else bytes(byte for byte in found if byte is not None)
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return bytes([int(name[3:5], 16)])
        return name.replace("\u2581", " ").encode() if "\u2581" in name else None


def is_byte_level(tokens: FolderTokens | NumberTokens) -> bool:
    """Whether the vocabulary spells bytes by letters, as GPT-2 did."""
    backend: Any = getattr(tokens, "backend", None)
    return backend is not None and "ByteLevel" in repr(getattr(backend, "decoder", None))


def byte_letters() -> dict[str, int]:
    """GPT-2's letters for the 256 bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
    return {letter: byte for byte, letter in letters.items()}


def marks_of(tokens: FolderTokens | NumberTokens) -> re.Pattern[str] | None:
    """The texts that a tokenizer reads as special tokens; None where there are none."""
    added = getattr(tokens.hf, "added_tokens_decoder", None) or {}
    found = {str(token.content) for token in added.values() if token.special}
    long = sorted((text for text in found if len(text) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, long))) if long else None


def broken_up(match: re.Match[str]) -> str:
    """A mark with a break in its middle."""
    text = match.group()
    return text[: len(text) // 2] + BREAK + text[len(text) // 2 :]
