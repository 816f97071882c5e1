"""`serve MODEL_DIR`: options in, an engine on an address out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from joymigrate.chips import Chip
    from joymigrate.cli._serve_front import FrontOptions
    from joymigrate.run.serve.engine.http.service import Service
    from joymigrate.run.serve.engine.types import EngineOptions

AUTO = "auto"


class Gated(Protocol):
    """What is asked of a ledger before it is served."""

    @property
    def model(self) -> Path: ...
    @property
    def ledger(self) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the command line asks for. `to` and `device` None: the best device that is there."""

    model: Path
    host: str
    port: int
    names: tuple[str, ...]
    front: FrontOptions
    to: str | None
    device: str | None
    unverified: bool
    ledger: Path | None
    template: Path | None
    log_format: str
    quiet: bool
    verbose: bool
    queue: int
    body_bytes: int
    drain_seconds: float
    engine: dict[str, Any]  # of EngineOptions, without the device
    generation: str = "auto"
    override: str = ""


def serve(start: ServeOptions) -> int:
    """Load the model, listen, serve until a signal."""
    import asyncio

    from joymigrate.run.serve.web import logs
    from joymigrate.run.serve.web.server import Server, run
    from joymigrate.run.serve.web.telemetry import open_telemetry

    log = logs.open_log(start.log_format, quiet=start.quiet, verbose=start.verbose)
    service = open_model(start)
    info = service.info

    async def whole() -> None:
        server = Server(service, start.host, start.port, start.front.front())
        server.site.telemetry = open_telemetry("joymigrate-engine")

        def listening() -> None:
            log.info(
                "listening on %s",
                server.url,
                extra={
                    "fields": {
                        "url": server.url,
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

        await run(server, listening, service.engine.until_failed)

    try:
        asyncio.run(whole())
    finally:
        service.engine.stop()
    return Exit.OK


def open_model(start: ServeOptions) -> Service:
    """The gate, then the model; the first refusal costs no loading."""
    from joymigrate.run.serve.engine.http.opening import open_service
    from joymigrate.run.serve.web.limits import Limits

    if not start.model.is_dir():
        raise JoyError(
            "there is no such model folder", where=str(start.model),
            help="a folder with config.json, *.safetensors and a tokenizer",
        )  # fmt: skip
    options, chip = engine_options(start)
    if chip is not None and not start.unverified:
        refuse_unproven(start, chip)
        if options.adapters:
            raise JoyError(
                f"the verdict is about the model without the adapter '{options.adapters[0][0]}'",
                where=options.adapters[0][1],
                help="verify a merged model, or serve it as it is: --unverified",
            )
    limits = Limits(
        body_bytes=start.body_bytes, queue=start.queue, drain_seconds=start.drain_seconds
    )
    return open_service(
        start.model, options, names=start.names, keys=start.front.read_keys(), limits=limits,
        template=start.template, generation=start.generation, override=start.override,
    )  # fmt: skip


def adapters_of(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`--lora NAME=FOLDER`, checked."""
    found = []
    for text in given:
        name, _, folder = text.partition("=")
        if not name or not Path(folder or "?").is_dir():
            raise JoyError(f"--lora {text}: there is no such folder", help="--lora NAME=FOLDER")
        found.append((name, folder))
    return tuple(found)


def engine_options(start: ServeOptions) -> tuple[EngineOptions, Chip | None]:
    """The options, and the target chip that they mean (None: the CPU or the origin)."""
    from joymigrate.run.serve.engine.types import EngineOptions

    device, chip = device_of(start.to, start.device)
    return EngineOptions(device=device, **start.engine), chip


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


def refuse_unproven(start: Gated, chip: Chip) -> None:
    """A target chip serves models with a passing verdict; raises `JoyError` for others."""
    import os

    from joymigrate.ledger import Ledger
    from joymigrate.ledger.subject import of_folder

    standing = Ledger.of(start.ledger or Path.cwd()).verdict(of_folder(start.model), chip.name)
    refusal = standing.refusal(rehearsal=bool(os.environ.get("JOYMIGRATE_REHEARSE")))
    if refusal is None:
        return
    raise JoyError(
        refusal,
        where=str(start.model),
        help="prove it: joymigrate verify generate; or serve it as it is: --unverified",
    )
