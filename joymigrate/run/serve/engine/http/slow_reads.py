"""Reads requests that take long beside the event loop: others' streams go on meanwhile.

A long text takes a tokenizer seconds, and so does compiling some grammars.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from joymigrate.run.serve.web.messages import Ask

Result = TypeVar("Result")
LONG_BYTES = 2**14
SLOW = (b'"guided_', b'"structured_outputs"', b'"response_format"', b'"tools"')
# One at a time: who sends long texts waits for others who do, and takes one processor at most.
THREAD = ThreadPoolExecutor(1, thread_name_prefix="reading")


async def read(ask: Ask, call: Callable[..., Result], *arguments: object) -> Result:
    """What `call` returns for a request; in a thread of its own where it may take long."""
    if len(ask.body) < LONG_BYTES and not any(word in ask.body for word in SLOW):
        return call(*arguments)
    return await asyncio.get_running_loop().run_in_executor(THREAD, call, *arguments)
