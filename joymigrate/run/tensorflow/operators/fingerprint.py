"""FarmHash's Fingerprint64, many texts at a time: what TensorFlow hashes texts with.

Written after google/farmhash, farmhashna::Hash64 (src/farmhash.cc, MIT): the value is fixed for
ever there, because files are keyed with it. Texts of one length are hashed together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

U = np.uint64
K0, K1, K2 = U(0xC3A5C85C97CB3127), U(0xB492B66FBE98F273), U(0x9AE16A3B2F90404F)
CONCATENATE = U(0xC6A4A7935BD1E995)
Words = Any  # numpy arrays of uint64, (n,)
Pair = tuple[Words, Words]


def fingerprint64(texts: Any) -> Any:
    """Hashes of an array of bytes, uint64, in its shape."""
    flat = np.asarray(texts, dtype=object).reshape(-1)
    known, where = np.unique(flat, return_inverse=True) if len(flat) else (flat, flat)
    lengths = np.array([len(each) for each in known], dtype=np.int64)
    hashes = np.empty(len(known), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            data = np.frombuffer(b"".join(known[rows]), np.uint8).reshape(len(rows), int(length))
            hashes[rows] = hash_rows(data)
    return (hashes[where] if len(flat) else hashes).reshape(np.shape(texts))


def concatenate64(first: Words, second: Words) -> Words:
    """One hash of two, as tensorflow/core/platform/fingerprint.h mixes them."""
    with np.errstate(over="ignore"):
        result = first ^ CONCATENATE
        result = result ^ (mix(second * CONCATENATE) * CONCATENATE)
        result = result * CONCATENATE
        return mix(mix(result) * CONCATENATE)


def hash_rows(data: Any) -> Words:
    """Hashes of texts of one length, (n, length) of uint8."""
    length = data.shape[1]
    if length <= 16:
        return up_to_16(data)
    if length <= 32:
        return up_to_32(data)
    return up_to_64(data) if length <= 64 else longer(data)


def fetch(data: Any, at: int, size: int = 8) -> Words:
    """Little-endian numbers at a byte of each row."""
    if at < 0:
        at += data.shape[1]
    piece = np.ascontiguousarray(data[:, at : at + size])
    return piece.view("<u8" if size == 8 else "<u4").reshape(-1).astype(np.uint64)


def rotate(value: Words, by: int) -> Words:
    """Bits turned to the right."""
    return (value >> U(by)) | (value << U(64 - by))


def mix(value: Words) -> Words:
    """The upper bits over the lower ones."""
    return value ^ (value >> U(47))


def join(first: Words, second: Words, factor: Words) -> Words:
    """HashLen16."""
    a = mix((first ^ second) * factor)
    return mix((second ^ a) * factor) * factor


def factor_of(data: Any) -> Words:
    """The factor for texts of this length."""
    return np.full(len(data), K2, np.uint64) + U(2 * data.shape[1])


def up_to_16(data: Any) -> Words:
    """HashLen0to16."""
    length, factor = data.shape[1], factor_of(data)
    if length >= 8:
        a, b = fetch(data, 0) + K2, fetch(data, -8)
        return join(rotate(b, 37) * factor + a, (rotate(a, 25) + b) * factor, factor)
    if length >= 4:
        return join(U(length) + (fetch(data, 0, 4) << U(3)), fetch(data, -4, 4), factor)
    if length == 0:
        return np.full(len(data), K2, np.uint64)
    a, b, c = (data[:, at].astype(np.uint64) for at in (0, length >> 1, length - 1))
    return mix((a + (b << U(8))) * K2 ^ (U(length) + (c << U(2))) * K0) * K2


def up_to_32(data: Any) -> Words:
    """HashLen17to32."""
    factor = factor_of(data)
    a, b = fetch(data, 0) * K1, fetch(data, 8)
    c, d = fetch(data, -8) * factor, fetch(data, -16) * K2
    return join(rotate(a + b, 43) + rotate(c, 30) + d, a + rotate(b + K2, 18) + c, factor)


def up_to_64(data: Any) -> Words:
    """HashLen33to64."""
    factor = factor_of(data)
    a, b = fetch(data, 0) * K2, fetch(data, 8)
    c, d = fetch(data, -8) * factor, fetch(data, -16) * K2
    y = rotate(a + b, 43) + rotate(c, 30) + d
    z = join(y, a + rotate(b + K2, 18) + c, factor)
    e, f = fetch(data, 16) * factor, fetch(data, 24)
    g, h = (y + fetch(data, -32)) * factor, (z + fetch(data, -24)) * factor
    return join(rotate(e + f, 43) + rotate(g, 30) + h, e + rotate(f + a, 18) + g, factor)


def weak(data: Any, at: int, a: Words, b: Words) -> Pair:
    """WeakHashLen32WithSeeds."""
    w, x, y, z = (fetch(data, at + 8 * each) for each in range(4))
    a = a + w
    b = rotate(b + a + z, 21)
    c = a
    a = a + x + y
    return a + z, b + rotate(a, 44) + c


def longer(data: Any) -> Words:
    """Texts of more than 64 bytes."""
    length = data.shape[1]
    seed = np.full(len(data), U(81), np.uint64)
    x, y = seed * K2 + fetch(data, 0), seed * K1 + U(113)
    z = mix(y * K2 + U(113)) * K2
    v = w = (np.zeros_like(x), np.zeros_like(x))
    for at in range(0, (length - 1) // 64 * 64, 64):
        x, y, z, v, w = block(data, at, x, y, z, v, w, K1, U(1), U(1))
    factor = K1 + ((z & U(0xFF)) << U(1))
    first = w[0] + U((length - 1) & 63)
    v = (v[0] + first, v[1])
    w = (first + v[0], w[1])
    x, y, z, v, w = block(data, length - 64, x, y, z, v, w, factor, U(9), U(9))
    return join(join(v[0], w[0], factor) + mix(y) * K0 + z, join(v[1], w[1], factor) + x, factor)


def block(
    data: Any,
    at: int,
    x: Words,
    y: Words,
    z: Words,
    v: Pair,
    w: Pair,
    factor: Words,
    of_w: Words,
    of_v: Words,
) -> tuple[Words, Words, Words, Pair, Pair]:
    """64 bytes."""
    x = rotate(x + y + v[0] + fetch(data, at + 8), 37) * factor
    y = rotate(y + v[1] + fetch(data, at + 48), 42) * factor
    x = x ^ (w[1] * of_w)
    y = y + v[0] * of_v + fetch(data, at + 40)
    z = rotate(z + w[0], 33) * factor
    v = weak(data, at, v[1] * factor, x + w[0])
    w = weak(data, at + 32, z + w[1], y + fetch(data, at + 16))
    return z, y, x, v, w
