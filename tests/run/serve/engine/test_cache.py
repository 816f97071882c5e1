"""When the cache takes its memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from joymigrate.run.serve.engine.cache import Cache, CacheShape

PAGES = Path("/proc/self/pagemap")  # 64 bits for each page; the upper two: in memory, or in swap


def resident_share(part: torch.Tensor) -> float:
    """How much of a tensor the system has given memory to, whatever else the process frees."""
    page = os.sysconf("SC_PAGE_SIZE")
    first = -(-part.data_ptr() // page)
    end = (part.data_ptr() + part.nbytes) // page
    with PAGES.open("rb") as file:
        file.seek(8 * first)
        pages = np.frombuffer(file.read(8 * (end - first)), np.uint64)
    return float((pages >> np.uint64(62) > 0).mean())


@pytest.mark.skipif(not PAGES.exists(), reason="needs Linux' /proc")
@pytest.mark.parametrize("pretouch", [False, True])
def test_a_cache_takes_its_memory_at_the_start_only_when_asked_to(pretouch: bool) -> None:
    shape = CacheShape(heads=2, kv_heads=2, key_size=64, value_size=64)
    cache = Cache([shape], 4096, 16, torch.float32, torch.device("cpu"), pretouch=pretouch)
    assert cache.bytes > 64 << 20
    for part in (*cache.keys, *cache.values):
        share = resident_share(part)
        assert share > 0.9 if pretouch else share < 0.1
    assert not any(part.any() for part in (*cache.keys, *cache.values))
