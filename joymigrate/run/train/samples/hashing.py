"""Hashes of ids, texts and crosses: the same in training and serving, in every process.

Whole numbers: the finaliser of SplitMix64. Texts: SipHash-2-4 of their UTF-8 bytes with the key
`0123456789123456` (pandas.util.hash_array). A hash that goes into a dynamic table keeps 63 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from joymigrate.run.train.order import mix_bits

Bits = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
MISSING = np.uint64(0x6D697373696E6721)  # the hash of a text that is not there
TOP = np.uint64((1 << 63) - 1)


def of_ids(ids: Ints) -> Bits:
    """Hashes of whole numbers."""
    return mix_bits(ids.astype(np.uint64))


def of_texts(values: Any) -> Bits:
    """Hashes of an Arrow array of texts; every distinct text is hashed once."""
    import pyarrow as pa
    from pandas.util import hash_array

    coded = values.dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    if isinstance(coded, pa.ChunkedArray):  # no chunk at all
        return np.empty(0, dtype=np.uint64)
    words = np.array(coded.dictionary.to_pylist(), dtype=object)
    known = hash_array(words, categorize=False) if len(words) else np.empty(0, dtype=np.uint64)
    table = np.append(known.astype(np.uint64), MISSING)
    codes = coded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    found: Bits = table[codes]
    return found


def cross_hashes(parts: Sequence[Bits]) -> Bits:
    """One hash of several; their order counts."""
    found = mix_bits(parts[0])
    for part in parts[1:]:
        found = mix_bits(found ^ (part + np.uint64(0x9E3779B97F4A7C15)))
    return found


def fold_hashes(hashes: Bits, rows: int | None) -> Ints:
    """Ids of a static table of `rows` rows, or of a dynamic one."""
    hashes = hashes & TOP if rows is None else hashes % np.uint64(rows)
    found: Ints = hashes.astype(np.int64)
    return found
