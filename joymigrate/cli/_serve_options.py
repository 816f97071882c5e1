"""The options of `serve MODEL_DIR`, by what they are about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from joymigrate.errors import JoyError

if TYPE_CHECKING:
    from joymigrate.run.serve.web.keys import Key
    from joymigrate.run.serve.web.limits import HttpLimits
    from joymigrate.run.serve.web.site import Front

KEYS = "Keys that are accepted; none: any."
CLIENTS = "Clients need a certificate that it signed."
BODY = 32 * 2**20
DEVICE = "cpu, cuda, cuda:1 … instead of --to; default: what is there."
COMPILE = "Compile the model; default: ranking models only."
UNVERIFIED = "Serve, or ramp a standby, without a passing verdict."
PROBE = "Try a shrunk copy of the model beyond its limits against transformers at load."
LORA = "A LoRA adapter; requests ask for it as model NAME. May be repeated."
LOOKUP = "Tokens that a step tries behind a text, as it went on before; the text is the same."
DRAFTS = "A smaller model that says tokens ahead, which the model checks; the text is the same."
PRETOUCH = "On a CPU: take the memory of keys and values at the start, not as blocks are used."
GENERATION = "Whose generation_config.json says how requests are sampled that do not say."
LANES = "Ranking: what runs batches; 0: as many as are fastest here."
SPARSE = "Of --part dense: each shard in order; behind | others with the same rows."
LOST = "Of --part dense: error (503), or default (rows of zeros)."


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where a server listens, who may come in, what it runs on. `to` and `device` None: the best
    device that is there."""

    host: Annotated[str, Option("--host", help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option("--port", min=0, max=65535, help="0: any free port.")] = 8000
    names: Annotated[
        list[str], Option("--name", help="What clients call the model; more: aliases.")
    ] = field(default_factory=list)
    keys: Annotated[
        list[str], Option("--api-key", envvar="JOYMIGRATE_API_KEY", help=KEYS)
    ] = field(default_factory=list)  # fmt: skip
    keys_file: Annotated[
        Path | None, Option("--keys-file", help="Keys with limits (YAML); SIGHUP reads it again.")
    ] = None
    certificate: Annotated[
        Path | None, Option("--tls-certificate", help="Serve https.")
    ] = None  # fmt: skip
    certificate_key: Annotated[Path | None, Option("--tls-key", help="Its key (PEM).")] = None
    client_ca: Annotated[Path | None, Option("--tls-client-ca", help=CLIENTS)] = None
    origins: Annotated[
        list[str], Option("--cors", metavar="ORIGIN", help="Pages of this origin may ask.")
    ] = field(default_factory=list)
    to: Annotated[str | None, Option("--to", help="The chip to serve on.")] = None
    device: Annotated[str | None, Option("--device", help=DEVICE)] = None
    threads: Annotated[int | None, Option("--threads", help="torch's threads on a CPU.")] = None
    compile: Annotated[bool | None, Option("--compile/--no-compile", help=COMPILE)] = None
    queue: Annotated[int, Option("--queue", min=0, help="Texts that may wait; then 429.")] = 4096
    body_limit: Annotated[
        str, Option("--body-limit", metavar="SIZE", help="Of a request: 16MiB, bytes.")
    ] = str(BODY)  # fmt: skip
    drain_seconds: Annotated[
        float, Option("--drain", min=0, help="Seconds for running requests at the end.")
    ] = 30.0
    unverified: Annotated[bool, Option("--unverified", help=UNVERIFIED)] = False
    ledger: Annotated[
        Path | None, Option("--ledger", help="Project whose ledger is asked.")
    ] = None  # fmt: skip
    log_format: Annotated[str, Option("--log-format", help="text or json.")] = "text"
    verbose: Annotated[bool, Option("-v", "--verbose", help="Log health checks, too.")] = False
    quiet: Annotated[bool, Option("-q", "--quiet")] = False

    def read_keys(self) -> tuple[Key, ...]:
        """All keys, those of the file as they are now; raises `JoyError`."""
        from joymigrate.run.serve.web.keys import list_keys

        given = list_keys([key for text in self.keys for key in text.split(",") if key])
        if self.keys_file is None:
            return given
        from joymigrate.run.serve.gateway.fronts import keys_of_file

        if not self.keys_file.is_file():
            raise JoyError("there is no such file of keys", where=str(self.keys_file))
        return (*given, *keys_of_file(self.keys_file))

    def front(self) -> Front:
        """The front of a server; raises `JoyError`."""
        from joymigrate.run.serve.web.cors import Cors
        from joymigrate.run.serve.web.site import Front
        from joymigrate.run.serve.web.tls import Tls

        if self.certificate is None and (self.certificate_key or self.client_ca):
            raise JoyError(
                "TLS needs a certificate", help="--tls-certificate FILE and --tls-key FILE"
            )
        tls = (
            Tls(self.certificate, self.certificate_key, self.client_ca)
            if self.certificate is not None
            else None
        )
        return Front(tls, Cors.of(self.origins, "--cors"), read_keys=self.read_keys)

    def limits(self) -> HttpLimits:
        """What a server takes at most."""
        from joymigrate.run.serve.web.limits import HttpLimits

        return HttpLimits(
            body_bytes=read_size(self.body_limit, "--body-limit") or BODY,
            queue=self.queue,
            drain_seconds=self.drain_seconds,
        )


SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?i?B)?")
UNITS = {unit: base**power for base, i in ((1000, ""), (1024, "i"))
         for power, unit in enumerate(("B", f"K{i}B", f"M{i}B", f"G{i}B", f"T{i}B"))}  # fmt: skip


def read_size(text: str | None, option: str) -> int | None:
    """Bytes: a number, or one with a unit. Raises `JoyError`."""
    if text is None:
        return None
    found = SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * UNITS.get(found[2] or "B", 0)) if found else 0
    if size < 1:
        raise JoyError(f"{option} takes bytes or a size, got '{text}'",
                       help=f"{option} 300MiB; units are {', '.join(UNITS)}")  # fmt: skip
    return size


@dataclass(frozen=True, slots=True)
class LanguageOptions:
    """The engine of a language model, and how its requests are sampled."""

    dtype: Annotated[str, Option("--dtype", help="auto, float32, bfloat16, float16.")] = "auto"
    max_model_len: Annotated[
        int | None, Option("--max-model-len", help="Longest text, tokens.")
    ] = None  # fmt: skip
    kv_memory: Annotated[
        str | None, Option("--kv-memory", metavar="SIZE", help="Of keys and values: 300MiB.")
    ] = None  # fmt: skip
    kv_blocks: Annotated[int | None, Option("--kv-blocks", help="Blocks instead of bytes.")] = None
    pretouch: Annotated[bool, Option("--pretouch", help=PRETOUCH)] = False
    block_size: Annotated[int | None, Option("--block-size", help="Tokens of a block.")] = None
    max_batch_tokens: Annotated[
        int, Option("--max-batch-tokens", help="Tokens of one step.")
    ] = 512  # fmt: skip
    max_running: Annotated[int, Option("--max-running", help="Texts that run at once.")] = 64
    prefix_cache: Annotated[bool, Option("--prefix-cache/--no-prefix-cache")] = True
    attention: Annotated[str, Option("--attention", help="auto, gather, varlen, vendor.")] = "auto"
    tensor_parallel: Annotated[
        int, Option("--tensor-parallel", help="Cards for one model.")
    ] = 1  # fmt: skip
    probe: Annotated[bool, Option("--probe/--no-probe", help=PROBE)] = True
    lora: Annotated[list[str], Option("--lora", metavar="NAME=FOLDER", help=LORA)] = field(
        default_factory=list
    )
    prompt_lookup: Annotated[int, Option("--prompt-lookup", min=0, help=LOOKUP)] = 0
    draft_model: Annotated[
        Path | None, Option("--draft-model", metavar="FOLDER", help=DRAFTS)
    ] = None  # fmt: skip
    draft_tokens: Annotated[
        int, Option("--draft-tokens", min=1, help="Tokens that it says ahead.")
    ] = 4  # fmt: skip
    generic: Annotated[
        bool, Option("--generic", help="Run the model through transformers.")
    ] = False  # fmt: skip
    trust_remote_code: Annotated[bool, Option("--trust-remote-code")] = False
    template: Annotated[Path | None, Option("--chat-template", help="A jinja file.")] = None
    generation: Annotated[
        str, Option("--generation-config", metavar="auto|none|FOLDER", help=GENERATION)
    ] = "auto"
    override: Annotated[
        str, Option("--override-generation-config", metavar="JSON", help="Single values of it.")
    ] = ""

    def of_engine(self) -> dict[str, Any]:
        """Those that `EngineOptions` takes by the same meaning; raises `JoyError`."""
        return {
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "kv_memory_bytes": read_size(self.kv_memory, "--kv-memory"),
            "kv_blocks": self.kv_blocks,
            "pretouch": self.pretouch,
            "block_size": self.block_size,
            "max_batch_tokens": self.max_batch_tokens,
            "max_running": self.max_running,
            "prefix_cache": self.prefix_cache,
            "attention": self.attention,
            "tensor_parallel": self.tensor_parallel,
            "prompt_lookup": self.prompt_lookup,
            "draft_model": str(self.draft_model) if self.draft_model is not None else None,
            "draft_tokens": self.draft_tokens,
            "adapters": adapters_of(self.lora),
            "probe": self.probe,
            "generic": self.generic,
            "trust_remote_code": self.trust_remote_code,
        }


@dataclass(frozen=True, slots=True)
class PreflightOptions:
    """`--check`: look at everything and start nothing."""

    check: Annotated[bool, Option("--check", help="Look at everything, start nothing.")] = False
    sku: Annotated[
        str | None, Option("--sku", help="With --check: the model of the card.")
    ] = None  # fmt: skip
    format: Annotated[str, Option("--format", help="With --check: text, json, md or html.")] = (
        "text"
    )
    output: Annotated[
        Path | None,
        Option("-o", "--output", metavar="FILE", help="With --check: write it to a file."),
    ] = None


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Another project's engine behind our gateway."""

    engine: Annotated[
        str, Option("--engine", help="joymigrate, or another to start.")
    ] = "joymigrate"  # fmt: skip
    python: Annotated[Path | None, Option("--python", help="That engine's environment.")] = None
    container: Annotated[str | None, Option("--container", help="Command that runs it.")] = None
    start_seconds: Annotated[
        float, Option("--start-timeout", min=1, help="Seconds to wait.")
    ] = 1800.0  # fmt: skip

    @property
    def own(self) -> bool:
        """Whether our own engine serves."""
        return self.engine == "joymigrate"


@dataclass(frozen=True, slots=True)
class RankingOptions:
    """A ranking model: its lanes and batches, its parts and its versions."""

    grpc_port: Annotated[
        int | None,
        Option(
            "--grpc-port",
            min=0,
            max=65535,
            help="Ranking and generative: KServe over gRPC there, too.",
        ),
    ] = None
    beams: Annotated[
        int, Option("--beams", min=1, help="Generative: beams searched at the same time.")
    ] = 4096
    lanes: Annotated[int, Option("--lanes", min=0, help=LANES)] = 0
    lane_kind: Annotated[
        str, Option("--lane-kind", help="Ranking: threads or processes.")
    ] = "threads"  # fmt: skip
    deadline_ms: Annotated[
        float | None, Option("--deadline-ms", min=0.1, help="Ranking: of requests that name none.")
    ] = None
    batch_ms: Annotated[
        float, Option("--batch-ms", min=0.1, help="Ranking: a batch's longest predicted time.")
    ] = 25.0
    versions: Annotated[
        str | None,
        Option("--versions", metavar="PLACE", help="Ranking: follow versions published there."),
    ] = None
    part: Annotated[
        str, Option("--part", help="Ranking: whole, dense (needs --sparse), sparse (rows alone).")
    ] = "whole"
    shard: Annotated[str, Option("--shard", metavar="i/N", help="Of --part sparse.")] = "0/1"
    sparse: Annotated[list[str], Option("--sparse", metavar="URL[|URL]", help=SPARSE)] = field(
        default_factory=list
    )
    shard_ms: Annotated[
        float, Option("--shard-ms", min=1, help="Of --part dense: the longest wait for rows.")
    ] = 50.0
    lost_shard: Annotated[str, Option("--lost-shard", help=LOST)] = "error"
    rows: Annotated[
        str | None,
        Option("--rows", metavar="redis://…", help="Of --part sparse: training's rows."),
    ] = None
    row_cache: Annotated[
        int, Option("--row-cache", min=0, help="Hot rows that are kept of each table.")
    ] = 100_000
    user_cache: Annotated[
        int,
        Option(
            "--user-cache", metavar="MIB", min=0, help="Ranking: keep computed user sides by key."
        ),
    ] = 0
    record: Annotated[
        Path | None,
        Option("--record", metavar="FILE", help="Ranking: append requests, for serve drill."),
    ] = None
    hold: Annotated[
        bool,
        Option("--hold", help="Ranking, with --versions: take versions only when told to."),
    ] = False


def adapters_of(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`--lora NAME=FOLDER`, checked."""
    found = []
    for text in given:
        name, _, folder = text.partition("=")
        if not name or not Path(folder or "?").is_dir():
            raise JoyError(f"--lora {text}: there is no such folder", help="--lora NAME=FOLDER")
        found.append((name, folder))
    return tuple(found)
