"""What an operator's signals mean: SIGINT and SIGTERM end, a second one hurries, SIGHUP reloads."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.asynccontextmanager
async def until_ended(
    reload: Callable[[], None] | None = None,
) -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Events that SIGINT or SIGTERM set: the first signal one, the second the other.

    SIGHUP calls `reload`; it ends a process that reloads nothing, as ever.
    """
    ended, hurried = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        (hurried if ended.is_set() else ended).set()

    wanted: dict[int, Callable[[], None]] = dict.fromkeys(ENDING, end)
    if reload is not None and hasattr(signal, "SIGHUP"):
        wanted[signal.SIGHUP] = reload
    for number, call in wanted.items():
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, call)
    try:
        yield ended, hurried
    finally:
        for number in wanted:
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
