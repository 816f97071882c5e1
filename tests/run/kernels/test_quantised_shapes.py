"""Quantised products and paged attention: every implementation near its reference at any size."""

from __future__ import annotations

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.kernels.ops.int4_matmul import weight4
from joymigrate.run.kernels.samples import Samples
from joymigrate.run.kernels.weights import Int8Weight

SOME = settings(max_examples=40, deadline=None)
lead = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
# One rounding of the result, and of the codes where a scale is found in another type.
NEAR = {torch.float32: 2e-2, torch.bfloat16: 4e-2}


def near(op: str, wanted: torch.Tensor, dtype: torch.dtype, *args: object) -> int:
    """Hold every implementation that takes the call against the reference; how many did."""
    kernel, asked = kernels.op(op), 0
    for name in kernel.names():
        if name == "reference":
            continue
        try:
            got = kernel(*args, request=name)
        except JoyError:
            continue  # it says why it does not take these sizes
        asked += 1
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype
        size = float(wanted.float().abs().max()) if wanted.numel() else 0.0
        torch.testing.assert_close(
            got, wanted, rtol=NEAR[dtype], atol=NEAR[dtype] * max(size, 1e-6)
        )
    return asked


@SOME
@example((1,), 2, 1, torch.float32, False, 0)  # torch's integer product was wrong for one input
@example((3, 47), 9, 64, torch.float32, False, 1)  # more rows than are taken at a time
@example((131,), 9, 64, torch.bfloat16, True, 1)
@given(lead, st.integers(1, 40), st.integers(1, 70), DTYPES, st.booleans(), st.integers(0, 99))
def test_quant_matmul(
    rows: tuple[int, ...], n: int, k: int, dtype: torch.dtype, static: bool, seed: int
) -> None:
    random = Samples(seed)
    x = random.normal(*rows, k).to(dtype)
    weight = Int8Weight(
        random.integers(-100, 101, n, k).to(torch.int8),
        random.uniform(n, low=0.001, high=0.02).float(),
        random.normal(n).float() if seed % 2 else None,
        torch.tensor([0.03]) if static else None,
    )
    wanted = kernels.op("quant_matmul")(x, weight, request="reference")
    before = x.clone()
    near("quant_matmul", wanted, dtype, x, weight)
    assert torch.equal(x, before), "the input stays as it is"
    got = kernels.op("quant_matmul")(x, weight)  # what is chosen by itself
    assert got.shape == (*rows, n)


@SOME
@given(lead, st.integers(1, 4), st.integers(1, 4), st.sampled_from([8, 32, 64]), DTYPES,
       st.booleans(), st.integers(0, 99))  # fmt: skip
def test_int4_matmul(
    rows: tuple[int, ...], blocks: int, groups: int, group: int, dtype: torch.dtype,
    zero: bool, seed: int,
) -> None:  # fmt: skip
    random = Samples(seed)
    k, n = groups * group, 16 * blocks
    x = random.normal(*rows, k).to(dtype)
    weight = weight4(random, n, k, group, zero=zero, bias=bool(seed % 2))
    wanted = kernels.op("int4_matmul")(x, weight, request="reference")
    near("int4_matmul", wanted, dtype, x, weight)


@SOME
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=4),
       st.sampled_from([(1, 1), (4, 2), (6, 6)]), st.sampled_from([1, 4, 16]),
       st.sampled_from([8, 16]), st.none() | st.integers(1, 8), st.none() | st.just(5.0),
       st.integers(0, 99))  # fmt: skip
def test_paged_attention(
    sequences: list[tuple[int, int]], heads: tuple[int, int], block: int, size: int,
    window: int | None, softcap: float | None, seed: int,
) -> None:  # fmt: skip
    random = Samples(seed)
    new = [count for count, _ in sequences]
    lengths = [count + old for count, old in sequences]
    starts = [sum(new[:i]) for i in range(len(new) + 1)]
    most = max(1, max(-(-length // block) for length in lengths))
    order = torch.randperm(most * len(new), generator=torch.Generator().manual_seed(seed))
    table = order.reshape(len(new), most)
    slots = torch.tensor(
        [int(table[i, at // block]) * block + at % block
         for i, (count, old) in enumerate(sequences) for at in range(old, old + count)],
        dtype=torch.int64,
    )  # fmt: skip
    total, (many, few) = sum(new), heads
    query = random.normal(total, many, size).float()
    key, value = (random.normal(total, few, size).float() for _ in range(2))
    caches = [random.normal(most * len(new), block, few, size).float() for _ in range(2)]
    kernel = kernels.op("paged_attention")
    wanted = None
    for name in ("reference", *(n for n in kernel.names() if n != "reference")):
        copies = [one.clone() for one in caches]
        try:
            found = kernel(query, key, value, *copies, slots, table, starts, lengths,
                           window=window, softcap=softcap, memo={}, request=name)  # fmt: skip
        except JoyError:
            continue
        if wanted is None:
            wanted = found
            continue
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert wanted is not None
