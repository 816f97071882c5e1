"""`serve MODEL_DIR`: options in, an engine on an address out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from joymigrate.chips import Chip
    from joymigrate.cli._serve_options import LanguageOptions, ServerOptions
    from joymigrate.run.serve.engine.http.app import Endpoint
    from joymigrate.run.serve.engine.types import EngineOptions

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """A language model's folder, its server and its engine."""

    model: Path
    server: ServerOptions
    language: LanguageOptions


def serve(start: ServeOptions) -> int:
    """Load the model, listen, serve until a signal."""
    import asyncio

    from joymigrate.run.serve.web import logs
    from joymigrate.run.serve.web.server import Server, run
    from joymigrate.run.serve.web.telemetry import open_telemetry

    server = start.server
    log = logs.open_log(server.log_format, quiet=server.quiet, verbose=server.verbose)
    service = open_model(start)
    info = service.info

    async def whole() -> None:
        listener = Server(service, server.host, server.port, server.front())
        listener.site.telemetry = open_telemetry("joymigrate-engine")

        def listening() -> None:
            log.info(
                "listening on %s",
                listener.url,
                extra={
                    "fields": {
                        "url": listener.url,
                        "model": service.name,
                        "family": info.family,
                        "device": info.device,
                        "dtype": info.dtype,
                        "attention": info.attention,
                        "max_model_len": info.max_model_len,
                        "kv_blocks": info.blocks,
                        "load_seconds": round(info.load_seconds, 3),
                        "rehearsal": info.rehearsal,
                    }
                },
            )

        await run(listener, listening, service.engine.until_failed)

    try:
        asyncio.run(whole())
    finally:
        service.engine.stop()
    return Exit.OK


def open_model(start: ServeOptions) -> Endpoint:
    """The gate, then the model; the first refusal costs no loading."""
    from joymigrate.run.serve.engine.http.service_start import open_service

    if not start.model.is_dir():
        raise JoyError(
            "there is no such model folder", where=str(start.model),
            help="a folder with config.json, *.safetensors and a tokenizer",
        )  # fmt: skip
    options, chip = engine_options(start)
    if chip is not None and not start.server.unverified:
        refuse_unproven(start.model, start.server.ledger, chip)
        if options.adapters:
            raise JoyError(
                f"the verdict is about the model without the adapter '{options.adapters[0][0]}'",
                where=options.adapters[0][1],
                help="verify a merged model, or serve it as it is: --unverified",
            )
    server, language = start.server, start.language
    return open_service(
        start.model, options,
        names=server.names, keys=server.read_keys(), limits=server.limits(),
        template=language.template, generation=language.generation, override=language.override,
    )  # fmt: skip


def engine_options(start: ServeOptions) -> tuple[EngineOptions, Chip | None]:
    """The options, and the target chip that they mean (None: the CPU or the origin)."""
    from joymigrate.run.serve.engine.types import EngineOptions

    server = start.server
    device, chip = device_of(server.to, server.device)
    options = EngineOptions(
        device=device, threads=server.threads, compile=bool(server.compile),
        **start.language.of_engine(),
    )  # fmt: skip
    return options, chip


def device_of(to: str | None, device: str | None) -> tuple[str, Chip | None]:
    """The device to run on: as asked, else the origin's or the target's where one works here."""
    from joymigrate import chips
    from joymigrate.device import CPU, why_not

    if device not in (None, AUTO):
        kind = str(device).partition(":")[0]
        named = next((c for c in chips.all_chips().values() if kind in (c.device, c.name)), None)
        chip = named if named is not None and not named.origin else None
        return str(device), chip
    if to is not None:
        chip = chips.target(to)
        return chip.device, chip
    for found in (chips.origin(), chips.target(None)):
        if found.device != CPU and why_not(found) is None:
            return found.device, None if found.origin else found
    return CPU, None


def refuse_unproven(model: Path, project: Path | None, chip: Chip) -> None:
    """A target chip serves models with a passing verdict; raises `JoyError` for others."""
    import os

    from joymigrate.ledger import Ledger
    from joymigrate.ledger.subject import of_folder

    standing = Ledger.of(project or Path.cwd()).verdict(of_folder(model), chip.name)
    refusal = standing.refusal(rehearsal=bool(os.environ.get("JOYMIGRATE_REHEARSE")))
    if refusal is None:
        return
    raise JoyError(
        refusal,
        where=str(model),
        help="prove it: joymigrate verify generate; or serve it as it is: --unverified",
    )
