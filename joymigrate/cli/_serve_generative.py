"""`serve MODEL --kind generative`: options in, a generative recommender on an address out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.errors import Exit, JoyError
from joymigrate.extras import need

if TYPE_CHECKING:
    from joymigrate.cli._serve_options import RankingOptions, ServerOptions


def recognise(folder: Path) -> bool:
    """Whether `train export` wrote a model that writes semantic ids there, by its files alone."""
    try:
        found = json.loads((folder / "config.json").read_text())
        return bool(found["model_type"] == "onerec" and "features" in found)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def serve(model: Path, server: ServerOptions, ranking: RankingOptions) -> int:
    """Load the model, listen, serve until a signal."""
    import asyncio

    from joymigrate.cli._serve_model import device_of, refuse_unproven
    from joymigrate.run.serve.generative import start
    from joymigrate.run.serve.kserve.listening import listen
    from joymigrate.run.serve.web import logs

    if not model.is_dir():
        raise JoyError("there is no such model folder", where=str(model),
                       help="a folder of train export")  # fmt: skip
    if ranking.grpc_port is not None:
        need("serve", "grpc", "tritonclient", what="gRPC")
    logs.open_log(server.log_format, quiet=server.quiet, verbose=server.verbose)
    device, chip = device_of(server.to, server.device)
    if chip is not None and not server.unverified:
        refuse_unproven(model, server.ledger, chip)
    service = start.open_service(
        model, device, beams=ranking.beams, names=server.names, keys=server.read_keys(),
        limits=server.limits(),
    )  # fmt: skip
    asyncio.run(listen(service, server.host, server.port, server.front(), ranking.grpc_port))
    return Exit.OK
