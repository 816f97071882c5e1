"""`serve MODEL --engine NAME`: somebody else's engine behind our front door."""

from __future__ import annotations

from joymigrate.cli._serve_model import ServeOptions, device_of
from joymigrate.cli._serve_options import EngineChoice
from joymigrate.errors import Exit, JoyError


def serve(start: ServeOptions, choice: EngineChoice, extra: tuple[str, ...]) -> int:
    """Start the engine, wait for it, serve it until a signal or until it ends."""
    import asyncio

    from joymigrate.run.serve.engine import launch
    from joymigrate.run.serve.engine.http.proxy import Proxy
    from joymigrate.run.serve.web import logs

    server, language = start.server, start.language
    _, chip = device_of(server.to, server.device)
    launcher = launch.find_launcher(choice.engine, chip.name if chip is not None else None)
    if choice.python is not None and choice.container is not None:
        raise JoyError("--python and --container exclude each other")
    if choice.container is None and not start.model.is_dir() and start.model.is_absolute():
        raise JoyError("there is no such model folder", where=str(start.model))
    log = logs.open_log(server.log_format, quiet=server.quiet, verbose=server.verbose)
    wish = launch.LaunchRequest(
        model=str(start.model),
        name=server.names[0] if server.names else start.model.resolve().name,
        python=choice.python,
        container=choice.container,
        dtype=language.dtype,
        max_model_len=language.max_model_len,
        tensor_parallel=language.tensor_parallel,
        extra=extra,
        start_seconds=choice.start_seconds,
    )
    child = launch.Child(launcher, wish, log.info)
    proxy = Proxy(child, server.host, server.port, server.read_keys(), front=server.front())
    return asyncio.run(proxy.run()) or Exit.OK
