"""Texts: hashes, lookups, numbers, and serialised examples. They stay on the host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joymigrate.run.tensorflow.operators.example import read_example
from joymigrate.run.tensorflow.operators.fingerprint import fingerprint64
from joymigrate.run.tensorflow.operators.table import DTYPES, LookupTable, operator


def texts(values: Any) -> Any:
    """An array of bytes of str, bytes, or arrays of them."""
    given = np.asarray(values, dtype=object)
    plain = [each.encode() if isinstance(each, str) else bytes(each) for each in given.reshape(-1)]
    made = np.empty(len(plain), dtype=object)
    made[:] = plain
    return made.reshape(given.shape)


@operator("StringToHashBucketFast")
def hash_bucket(x: Any, *, num_buckets: int) -> Tensor:
    """FarmHash's fingerprint, modulo buckets."""
    return torch.from_numpy((fingerprint64(x) % np.uint64(num_buckets)).astype(np.int64))


@operator("StringToHashBucketStrong")
def strong_hash_bucket(x: Any, *, num_buckets: int, key: Sequence[int]) -> Tensor:
    """SipHash-2-4 with a key, modulo buckets."""
    found = [siphash(bytes(text), key) % num_buckets for text in x.reshape(-1)]
    return torch.tensor(found, dtype=torch.int64).reshape(x.shape)


def siphash(data: bytes, key: Sequence[int]) -> int:
    """Aumasson and Bernstein, 2012, with two rounds a word and four at the end."""
    full = 2**64 - 1
    first, second = (part & full for part in key)
    a, b = first ^ 0x736F6D6570736575, second ^ 0x646F72616E646F6D
    c, d = first ^ 0x6C7967656E657261, second ^ 0x7465646279746573

    def turned(value: int, by: int) -> int:
        return (value << by | value >> (64 - by)) & full

    def rounds(count: int) -> None:
        nonlocal a, b, c, d
        for _ in range(count):
            a, c = (a + b) & full, (c + d) & full
            b, d, a = turned(b, 13) ^ a, turned(d, 16) ^ c, turned(a, 32)
            a, c = (a + d) & full, (c + b) & full
            d, b, c = turned(d, 21) ^ a, turned(b, 17) ^ c, turned(c, 32)

    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        d ^= word
        rounds(2)
        a ^= word
    c ^= 0xFF
    rounds(4)
    return a ^ b ^ c ^ d


@operator("LookupTableFindV2", "LookupTableFind")
def find(table: LookupTable, keys: Any, default: Any) -> Any:
    """Values of keys in a table."""
    return table.find(keys, default)


@operator("LookupTableSizeV2", "LookupTableSize")
def size(table: LookupTable) -> Tensor:
    """The number of keys."""
    return torch.tensor(len(table.values))


@operator("AsString")
def as_text(
    x: Any, *, precision: int = -1, scientific: bool = False, shortest: bool = False
) -> Any:
    """Numbers as C prints them."""
    if isinstance(x, np.ndarray):
        return x
    if x.is_floating_point():
        kind = "e" if scientific else "g" if shortest else "f"
        form = f"%{'' if precision < 0 else f'.{precision}'}{kind}"
        plain = [form % each for each in x.reshape(-1).tolist()]
    elif x.dtype == torch.bool:
        plain = [str(each).lower() for each in x.reshape(-1).tolist()]
    else:
        plain = [str(each) for each in x.reshape(-1).tolist()]
    return texts(plain).reshape(tuple(x.shape))


@operator("StringToNumber")
def to_number(x: Any, *, out_type: str = "float32") -> Tensor:
    """Numbers that texts write."""
    kind = float if out_type.startswith("float") else int
    return torch.tensor([kind(each) for each in x.reshape(-1)], dtype=DTYPES[out_type]).reshape(
        x.shape
    )


@operator("StringLower")
def lower(x: Any, *, encoding: str = "") -> Any:
    """Small letters: of ASCII alone, unless an encoding is named."""
    return each_of(x, lambda text: text.decode().lower().encode() if encoding else text.lower())


@operator("StringStrip")
def strip(x: Any) -> Any:
    """Without white space at both ends."""
    return each_of(x, bytes.strip)


def each_of(x: Any, function: Any) -> Any:
    """A function of each text."""
    return texts([function(each) for each in x.reshape(-1)]).reshape(x.shape)


@operator("StringLength")
def length(x: Any, *, unit: str = "BYTE") -> Tensor:
    """Bytes of each text, or its signs of UTF-8."""
    first = range(256) if unit == "BYTE" else [b for b in range(256) if b & 0xC0 != 0x80]
    begins = frozenset(first)  # bytes that begin a sign
    sizes = [sum(byte in begins for byte in text) for text in x.reshape(-1)]
    return torch.tensor(sizes, dtype=torch.int32).reshape(x.shape)


# What RE2 and Python's `re` over bytes read alike: ASCII without `.`, `$`, classes that say what
# they lack, `\s` and names, none of which mean the same for texts of more than ASCII.
SIGN = r"\\[dwtnr]|\\[!-/:-@\[-`{-~]"
SHARED = re.compile(
    rf"(?:{SIGN}|\[(?![\^\[])(?:{SIGN}|[\t\n\r -Z^-~])+\]|\((?!\?)|\{{(?!,)"
    r"|[\t\n\r !\"#%&')*+,\-/0-9:;<=>?@A-Z^_`a-z|}~\]])*"
)


def is_shared(pattern: str, rewrite: str) -> bool:
    """Whether a replacement means the same to RE2 and to Python's `re`; what can match an empty
    text does not."""
    if not SHARED.fullmatch(pattern) or "\\\\" in rewrite:
        return False
    try:
        return re.compile(pattern).match("") is None
    except re.error:
        return False


@operator("StaticRegexReplace")
def replace(x: Any, *, pattern: str, rewrite: str, replace_global: bool = True) -> Any:
    r"""What fits a pattern that RE2 and Python read alike (`is_shared`), by a text in which \0 … \9
    are its groups."""
    fits = re.compile(pattern.encode())
    text = re.sub(rb"\\(\d)", rb"\\g<\1>", rewrite.encode())
    return each_of(x, lambda each: fits.sub(text, each, count=0 if replace_global else 1))


@operator("StringJoin")
def join(*values: Any, separator: str = "") -> Any:
    """Texts side by side."""
    arrays = np.broadcast_arrays(*values)
    rows = zip(*[each.reshape(-1) for each in arrays], strict=True)
    return texts([separator.encode().join(row) for row in rows]).reshape(arrays[0].shape)


@operator("StringSplitV2", host=(1,))
def split(x: Any, separator: Any, *, maxsplit: int = -1) -> tuple[Tensor, Any, Tensor]:
    """Pieces of texts, as a sparse tensor."""
    by = bytes(np.asarray(separator, dtype=object).reshape(-1)[0]) or None
    rows = [text.split(by, maxsplit) for text in x.reshape(-1)]
    return from_rows(rows)


def from_rows(rows: Sequence[Sequence[Any]], dtype: str = "string") -> tuple[Tensor, Any, Tensor]:
    """Lists as a sparse tensor."""
    where = [(row, at) for row, values in enumerate(rows) for at in range(len(values))]
    flat = [value for values in rows for value in values]
    wide = max((len(values) for values in rows), default=0)
    made = texts(flat) if dtype == "string" else torch.tensor(flat, dtype=DTYPES[dtype])
    places = torch.tensor(where, dtype=torch.int64).reshape(-1, 2)
    return places, made, torch.tensor([len(rows), wide])


@operator("ParseExampleV2", host=(1, 2, 3, 4))
def parse_examples(
    serialised: Any,
    names: Any,
    sparse_keys: Any,
    dense_keys: Any,
    ragged_keys: Any,
    *defaults: Any,
    sparse_types: Sequence[str],
    Tdense: Sequence[str],
    dense_shapes: Sequence[Sequence[int]],
    ragged_value_types: Sequence[str] = (),
    ragged_split_types: Sequence[str] = (),
) -> tuple[Any, ...]:
    """Features of serialised examples.

    Indices, values and shapes of sparse ones, dense ones, values and row ends of ragged ones.
    """
    examples = [read_example(each) for each in serialised.reshape(-1)]
    sparse = [
        from_rows([example.get(bytes(key), ()) for example in examples], dtype)
        for key, dtype in zip(sparse_keys, sparse_types, strict=True)
    ]
    dense = [
        dense_feature(examples, bytes(key), dtype, shape, default)
        for key, dtype, shape, default in zip(
            dense_keys, Tdense, dense_shapes, defaults, strict=True
        )
    ]
    columns = zip(*sparse, strict=True) if sparse else ([], [], [])
    kinds = zip(ragged_keys, ragged_value_types, ragged_split_types, strict=True)
    ragged = [
        flat_rows([example.get(bytes(key), ()) for example in examples], dtype, ends)
        for key, dtype, ends in kinds
    ]
    behind = zip(*ragged, strict=True) if ragged else ([], [])
    flat = [part for column in (*columns, dense, *behind) for part in column]
    return tuple(flat)


def flat_rows(rows: Sequence[Any], dtype: str, ends: str) -> tuple[Any, Tensor]:
    """Values behind one another, and where each row ends."""
    _, values, _ = from_rows(rows, dtype)
    sizes = [0, *[len(row) for row in rows]]
    return values, torch.tensor(sizes).cumsum(0).to(DTYPES[ends])


def dense_feature(
    examples: Sequence[Any], key: bytes, dtype: str, shape: Sequence[int], default: Any
) -> Any:
    """One feature of all examples, in its shape; the default where an example lacks it."""
    filler = default.reshape(-1).tolist()
    wanted = int(np.prod(shape)) if all(each >= 0 for each in shape) else None
    rows = []
    for number, example in enumerate(examples):
        values = example.get(key)
        values = filler if values is None or not len(values) else list(values)
        if wanted is not None and len(values) != wanted:
            raise ValueError(
                f"feature {key.decode()} of example {number} has {len(values)} values, not {wanted}"
            )
        rows.append(values)
    if dtype == "string":
        return texts([value for row in rows for value in row]).reshape(len(rows), *shape)
    return torch.tensor(rows, dtype=DTYPES[dtype]).reshape(len(rows), *shape)
