"""`serve --check`: everything that can be known about a start without starting, with remedies.

Versions that fit together, the memory of weights and KV blocks, operators that the chip lacks, the
chat template, the port. Reads headers only: a model of any size is checked in seconds.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import platform
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError
from joymigrate.run.engine.types import EngineOptions

if TYPE_CHECKING:
    from joymigrate.chips import Chip

SCHEMA = "joymigrate.preflight/1"
OK, WARN, FAIL = "ok", "warn", "fail"
MIB, GIB = 2**20, 2**30
USABLE = 0.9  # share of a card that the engine may fill
RUNTIME_BYTES = 800 * MIB  # torch, its workspaces, activations of one step
WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
          "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}  # fmt: skip
FLOATS = ("F64", "F32", "F16", "BF16")
BYTES_OF = {"float32": 4, "float16": 2, "bfloat16": 2}
# What the engine's decoder and sampler call on every device, views and copies aside; a test
# records a run and holds the list against it.
OPERATORS = tuple(
    f"aten::{name}"
    for name in """
    __iand__.Tensor add.Tensor add_.Tensor addcmul any arange argmax bitwise_not chunk clamp
    clone copy_ cumsum div.Tensor fill_.Tensor gather ge.Tensor gt.Scalar gt.Tensor
    index.Tensor index_add index_copy_ index_put_ index_select isfinite isnan linear
    log_softmax.int lt.Scalar lt.Tensor masked_fill_.Scalar matmul minimum mul.Tensor
    mul_.Tensor rms_norm roll scaled_dot_product_attention searchsorted.Tensor silu
    softmax.int sub.Tensor sum.dim_IntList topk where.self zeros
    """.split()  # noqa: SIM905 - read and diffed as words
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found, and what to do when it is not good."""

    name: str
    status: str
    found: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """As in the report."""
        return {
            "name": self.name,
            "status": self.status,
            "found": self.found,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Memory:
    """A plan: bytes per card, blocks of the KV cache, and how long texts may be at once."""

    total: int | None
    weights: int
    runtime: int
    kv_per_token: int
    block_size: int
    blocks: int | None
    tokens: int | None
    max_model_len: int

    def to_json(self) -> dict[str, Any]:
        """As in the report."""
        return {
            "total_bytes": self.total,
            "weight_bytes": self.weights,
            "runtime_bytes": self.runtime,
            "kv_bytes_per_token": self.kv_per_token,
            "block_size": self.block_size,
            "kv_blocks": self.blocks,
            "kv_tokens": self.tokens,
            "max_model_len": self.max_model_len,
            "texts_of_full_length": None
            if self.tokens is None
            else self.tokens // self.max_model_len,
        }


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found about one start."""

    model: str
    chip: str | None
    findings: tuple[Finding, ...]
    memory: Memory | None

    def __bool__(self) -> bool:
        return all(one.status != FAIL for one in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The report."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "chip": self.chip,
            "ready": bool(self),
            "checks": [one.to_json() for one in self.findings],
            "memory": self.memory.to_json() if self.memory else None,
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """The start that is checked. `chip` None: the CPU; `sku` names the model of the card."""

    folder: Path
    options: EngineOptions
    chip: Chip | None = None
    sku: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    template: Path | None = None


def check(wanted: Wanted) -> Preflight:
    """Look at everything; a mistake of the user becomes a finding, not an exception."""
    findings = list(versions(wanted.chip))
    memory = None
    try:
        config = read_config(wanted.folder)
        findings += model(wanted, config)
        memory, told = plan(wanted, config)
        findings.append(told)
    except JoyError as error:
        findings.append(Finding("model", FAIL, told_by(error), error.help or ""))
    findings += operators(wanted)
    findings.append(port(wanted.host, wanted.port))
    chip = wanted.chip.name if wanted.chip else None
    return Preflight(wanted.folder.resolve().name, chip, tuple(findings), memory)


def told_by(error: JoyError) -> str:
    """An error in one line."""
    return f"{error.what} ({error.where})" if error.where else error.what


# Versions


def versions(chip: Chip | None) -> Iterator[Finding]:
    """Python, torch, the chip's package, and the libraries of the server."""
    torch = installed("torch")
    if torch is None:
        yield Finding("torch", FAIL, "torch is not installed", "pip install torch")
    else:
        yield Finding("torch", OK, f"torch {torch}, Python {platform.python_version()}")
    needed = ("aiohttp", "orjson", "prometheus-client", "transformers", "tokenizers", "jinja2")
    missing = [name for name in needed if installed(name) is None]
    if missing:
        remedy = "pip install 'joymigrate[serve]'"
        yield Finding("libraries", FAIL, f"not installed: {', '.join(missing)}", remedy)
    else:
        shown = ", ".join(f"{name} {installed(name)}" for name in ("transformers", "tokenizers"))
        yield Finding("libraries", OK, shown)
    if installed("llguidance") is None:
        yield Finding(
            "guided output", WARN, "llguidance is not installed: response_format is refused",
            "pip install 'joymigrate[serve]'",
        )  # fmt: skip
    if chip is not None and chip.distribution and chip.distribution != "torch":
        yield package(chip, torch)


def package(chip: Chip, torch: str | None) -> Finding:
    """The vendor's package against torch, by the chip's own table of releases."""
    name = str(chip.distribution)
    have = installed(name)
    if have is None:
        return Finding(name, FAIL, f"{name} is not installed", f"pip install {name}")
    plain = (torch or "").split("+")[0]
    rows = [row for row in chip.versions if row.get("package") and row.get("torch")]
    row = next((row for row in rows if row["package"] == have), None)
    fitting = [str(row["package"]) for row in rows if row["torch"] == plain]
    if row is None:
        advice = f"known to fit torch {plain}: {', '.join(fitting)}" if fitting else ""
        return Finding(name, WARN, f"{name} {have} is not in the table of releases", advice)
    if row["torch"] != plain:
        advice = f"pip install torch=={row['torch']}"
        advice += f", or {name}=={fitting[0]}" if fitting else ""
        return Finding(name, FAIL, f"{name} {have} needs torch {row['torch']}, not {plain}", advice)
    sdk = f", released with {row['sdk']}" if row.get("sdk") else ""
    return Finding(name, OK, f"{name} {have} fits torch {plain}{sdk}")


def installed(name: str) -> str | None:
    """The version of a distribution, None where it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# The model


def read_config(folder: Path) -> dict[str, Any]:
    """config.json; raises `JoyError`."""
    from joymigrate.run.engine.models import spec

    return spec.read_config(folder)


def model(wanted: Wanted, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Family, weights on disk, tokenizer, chat template."""
    from joymigrate.run.engine.models import spec

    found, reason = spec.describe(config)
    name = str(config["model_type"])
    if found is not None:
        yield Finding("family", OK, f"{found.family}: the engine's own decoder")
    elif spec_of_transformers(name):
        yield Finding("family", OK, f"{name}: through transformers ({reason})")
    else:
        yield Finding(
            "family", FAIL,
            f"{name}: no causal language model of transformers {installed('transformers')}",
            "newer families need a newer transformers; others go through --engine",
        )  # fmt: skip
    folder = wanted.folder
    files = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    if any((folder / file).is_file() for file in files):
        yield Finding("tokenizer", OK, "there")
    else:
        yield Finding(
            "tokenizer", WARN, "none in the folder: requests bring token ids",
            "copy the tokenizer's files beside config.json",
        )  # fmt: skip
    yield template(folder, wanted.template)


def spec_of_transformers(name: str) -> bool:
    """Whether transformers has a causal model of this type."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    if importlib.util.find_spec("transformers") is None:
        return False
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def template(folder: Path, override: Path | None) -> Finding:
    """Whether chat requests can be served."""
    from joymigrate.run.engine.http.templates import Templates

    try:
        found = Templates.of(folder, override)
    except JoyError as error:
        return Finding("chat template", FAIL, told_by(error), error.help or "")
    if not found.sources:
        return Finding(
            "chat template", WARN, "none: /v1/chat/completions answers 400",
            "serve with --chat-template FILE, or use /v1/completions",
        )  # fmt: skip
    return Finding("chat template", OK, ", ".join(found.sources))


# Memory


def plan(wanted: Wanted, config: Mapping[str, Any]) -> tuple[Memory, Finding]:
    """Weights, KV blocks, and what is left."""
    options = wanted.options
    dtype = options.dtype if options.dtype != "auto" else dtype_of(config)
    share = options.tensor_parallel
    weights = math.ceil(weight_bytes(wanted.folder, dtype) / share)
    per_token = math.ceil(kv_bytes(config, dtype) / share)
    length = options.max_model_len or int(config.get("max_position_embeddings") or 4096)
    block = options.block_size or (16 if wanted.chip is None else 128)
    total = card_bytes(wanted)
    blocks: int | None = options.kv_blocks
    if blocks is None and options.kv_memory_bytes is not None:
        blocks = options.kv_memory_bytes // (block * per_token)
    if blocks is None and total is not None:
        left = int(total * USABLE) - weights - RUNTIME_BYTES
        blocks = max(0, left // (block * per_token))
    tokens = None if blocks is None else blocks * block
    memory = Memory(total, weights, RUNTIME_BYTES, per_token, block, blocks, tokens, length)
    return memory, judged(memory, dtype, share)


def judged(memory: Memory, dtype: str, share: int) -> Finding:
    """Whether the plan holds, and what helps when not."""
    where = "on one card" if share == 1 else f"on each of {share} cards"
    said = (
        f"weights {size(memory.weights)} as {dtype} {where}, KV cache "
        f"{size(memory.kv_per_token * memory.block_size)} per block of {memory.block_size} tokens"
    )
    if memory.total is None:
        return Finding(
            "memory", WARN, f"{said}; the card's memory is not known",
            "name its model with --sku, or give --kv-memory BYTES",
        )  # fmt: skip
    said += f"; {size(memory.total)} in all"
    if memory.blocks == 0:
        needed = memory.weights + RUNTIME_BYTES + memory.kv_per_token * memory.max_model_len
        cards = math.ceil(needed / (memory.total * USABLE))
        return Finding(
            "memory", FAIL, f"{said}: no room for a KV cache",
            f"--tensor-parallel {max(2, cards * share)}, --dtype bfloat16, or quantised weights "
            "(joymigrate quantise)",
        )  # fmt: skip
    tokens = memory.tokens or 0
    said += f": room for {tokens} tokens"
    if tokens < memory.max_model_len:
        return Finding(
            "memory", FAIL, f"{said}, fewer than one text of {memory.max_model_len}",
            f"--max-model-len {max(memory.block_size, tokens)}, more cards, or quantised weights",
        )  # fmt: skip
    return Finding("memory", OK, f"{said}, {tokens // memory.max_model_len} texts of full length")


def size(count: int) -> str:
    """Bytes for people."""
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.1f} MiB" if count >= MIB else f"{count / 1024:.1f} KiB"


def dtype_of(config: Mapping[str, Any]) -> str:
    """The data type that the configuration names."""
    text = config.get("text_config") or {}
    named = config.get("dtype") or config.get("torch_dtype") or text.get("dtype")
    return str(named) if str(named) in BYTES_OF else "float32"


def weight_bytes(folder: Path, dtype: str) -> int:
    """Bytes of the weights in memory: floating ones in `dtype`, others as they are on disk."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise JoyError(
            "the folder has no safetensors weights", where=str(folder),
            help="load the model with transformers and save_pretrained() it",
        )  # fmt: skip
    total = 0
    for path in files:
        for entry in header(path).values():
            kind = str(entry["dtype"])
            width = BYTES_OF[dtype] if kind in FLOATS else WIDTHS.get(kind, 1)
            total += math.prod(entry["shape"]) * width
    return total


def header(path: Path) -> dict[str, Any]:
    """The table at the beginning of a safetensors file (its length, then JSON)."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            found = json.loads(file.read(length))
    except (OSError, ValueError) as error:
        raise JoyError(f"{path.name} is no safetensors file: {error}", where=str(path)) from None
    found.pop("__metadata__", None)
    ends = [entry["data_offsets"][1] for entry in found.values()]
    if 8 + length + max(ends, default=0) > path.stat().st_size:
        raise JoyError(f"{path.name} is cut off", where=str(path), help="download or copy it again")
    return dict(found)


def kv_bytes(config: Mapping[str, Any], dtype: str) -> int:
    """Bytes of keys and values of one token over all layers.

    By the names that transformers' configurations agree on; latent attention keeps less.
    """
    text = config.get("text_config") or config

    def of(*names: str) -> int | None:
        return next((int(text[name]) for name in names if text.get(name)), None)

    layers = of("num_hidden_layers", "n_layer", "num_layers") or 1
    heads = of("num_attention_heads", "n_head") or 1
    groups = of("num_key_value_heads", "multi_query_group_num", "num_kv_heads") or heads
    width = of("head_dim", "kv_channels") or (of("hidden_size", "n_embd") or heads) // heads
    return 2 * layers * groups * width * BYTES_OF[dtype]


def card_bytes(wanted: Wanted) -> int | None:
    """Memory of one card: by the model named, by the card that is there, or of the host."""
    if wanted.chip is None:
        if importlib.util.find_spec("psutil") is None:
            return None
        import psutil

        return int(psutil.virtual_memory().available)
    if wanted.sku is not None:
        return sku_bytes(wanted.chip, wanted.sku)
    from joymigrate.device import Device, why_not

    if why_not(wanted.chip) is not None:
        return None
    device = Device(wanted.chip.device, wanted.chip.name, wanted.chip.backend)
    return device.memory().total


def sku_bytes(chip: Chip, name: str) -> int | None:
    """Memory of a named model; raises `JoyError` for an unknown one."""
    for sku in chip.skus:
        if name.lower() in (word.lower() for word in (sku.name, *sku.match)):
            return None if sku.memory_gib is None else int(sku.memory_gib * GIB)
    known = ", ".join(sku.name for sku in chip.skus)
    raise JoyError(f"{chip.title} has no model '{name}'", help=f"--sku: one of {known}")


# Operators, port


def operators(wanted: Wanted) -> Iterator[Finding]:
    """What the engine calls and the chip does not have."""
    if wanted.chip is None or wanted.chip.origin:
        return
    from joymigrate.profile import oplist

    try:
        listed = oplist.of(wanted.chip.name)
    except JoyError as error:
        yield Finding("operators", WARN, told_by(error), error.help or "")
        return
    poor = {name: listed.status(*split(name)) for name in OPERATORS}
    poor = {name: support for name, support in poor.items() if not support.supported}
    if not poor:
        yield Finding(
            "operators", OK, f"all {len(OPERATORS)} that the engine calls stay on the chip"
        )
        return
    for name, support in poor.items():
        remedy = support.alternative or support.note or "profile coverage says more"
        status = FAIL if support.status.value == "missing" else WARN
        yield Finding(f"operator {name}", status, support.status.value, remedy)


def split(name: str) -> tuple[str, str]:
    """`aten::add.Tensor` → name and overload."""
    base, _, overload = name.partition(".")
    return base, overload


def port(host: str, number: int) -> Finding:
    """Whether the address is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            return Finding("address", FAIL, f"{host}:{number}: {error.strerror or error}", "--port")
    loopback = re.fullmatch(r"127\..*|::1|localhost", host) is not None
    if loopback:
        return Finding("address", OK, f"{host}:{number} is free, for this machine only")
    return Finding("address", OK, f"{host}:{number} is free, for the whole network: set --api-key")
