"""`serve MODEL --engine NAME`: somebody else's engine behind our front door."""

from __future__ import annotations

from pathlib import Path

from joymigrate.cli._serve_model import ServeOptions, device_of
from joymigrate.errors import Exit, JoyError


def serve(
    start: ServeOptions,
    engine: str,
    *,
    python: Path | None,
    container: str | None,
    start_seconds: float,
    extra: tuple[str, ...],
) -> int:
    """Start the engine, wait for it, serve it until a signal or until it ends."""
    import asyncio

    from joymigrate.run.serve.engine import launch
    from joymigrate.run.serve.engine.http.proxy import Proxy
    from joymigrate.run.serve.web import logs

    _, chip = device_of(start.to, start.device)
    launcher = launch.named(engine, chip.name if chip is not None else None)
    if python is not None and container is not None:
        raise JoyError("--python and --container exclude each other")
    if container is None and not start.model.is_dir() and start.model.is_absolute():
        raise JoyError("there is no such model folder", where=str(start.model))
    log = logs.open_log(start.log_format, quiet=start.quiet, verbose=start.verbose)
    wish = launch.Wish(
        model=str(start.model),
        name=start.names[0] if start.names else start.model.resolve().name,
        python=python,
        container=container,
        dtype=str(start.engine.get("dtype", "auto")),
        max_model_len=start.engine.get("max_model_len"),
        tensor_parallel=int(start.engine.get("tensor_parallel") or 1),
        extra=extra,
        start_seconds=start_seconds,
    )
    child = launch.Child(launcher, wish, log.info)
    keys, front = start.front.read_keys(), start.front.front()
    return asyncio.run(Proxy(child, start.host, start.port, keys, front=front).run()) or Exit.OK
