"""When the cache takes its memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from joymigrate.run.serve.engine.cache import Cache, Shape


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux' /proc")
@pytest.mark.parametrize("pretouch", [False, True])
def test_a_cache_takes_its_memory_at_the_start_only_when_asked_to(pretouch: bool) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    shape = Shape(heads=2, kv_heads=2, key_size=64, value_size=64)
    before = resident()
    cache = Cache([shape], 4096, 16, torch.float32, torch.device("cpu"), pretouch=pretouch)
    taken = resident() - before
    assert cache.bytes > 64 << 20
    assert taken > 0.9 * cache.bytes if pretouch else taken < 0.1 * cache.bytes
    assert not any(part.any() for part in (*cache.keys, *cache.values))
