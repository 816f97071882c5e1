"""`serve --check`: everything that can be known about a start without starting, with remedies.

Versions that fit together, the memory of weights, states and KV blocks, operators that the chip
lacks, the chat template, the port. Reads headers only: a model of any size is checked in seconds.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.memory import plan
from joymigrate.run.serve.engine.preflight import (
    FAIL,
    OK,
    WARN,
    MemoryPlan,
    Preflight,
    StartFinding,
    StartRequest,
    told_by,
)

if TYPE_CHECKING:
    from joymigrate.chips import Chip

# What the engine's decoder and sampler call on every device, views and copies aside; a test
# records a run and holds the list against it.
OPERATORS = tuple(
    f"aten::{name}"
    for name in """
    __iand__.Tensor add.Tensor add_.Tensor addcmul any arange argmax bitwise_not chunk clamp
    clone copy_ cumsum split_with_sizes div.Tensor fill_.Tensor gather ge.Tensor gt.Scalar gt.Tensor
    index.Tensor index_add index_copy_ index_put_ index_select isfinite isnan linear
    log_softmax.int lt.Scalar lt.Tensor masked_fill_.Scalar matmul minimum mul.Tensor
    mul_.Tensor rms_norm roll scaled_dot_product_attention searchsorted.Tensor silu
    softmax.int sub.Tensor sum.dim_IntList topk where.self zeros
    """.split()  # noqa: SIM905 - read and diffed as words
)


def check(wanted: StartRequest) -> Preflight:
    """Look at everything; a mistake of the user becomes a finding, not an exception."""
    findings = list(versions(wanted.chip))
    memory: MemoryPlan | None = None
    try:
        config = read_config(wanted.folder)
        findings += model(wanted, config)
        memory, told = plan(wanted, config)
        findings += as_documented(told) if wanted.sku else told
    except JoyError as error:
        findings.append(StartFinding("model", FAIL, told_by(error), error.help or ""))
    findings += as_documented(operators(wanted))
    findings.append(port(wanted.host, wanted.port))
    chip = wanted.chip.name if wanted.chip else None
    return Preflight(wanted.folder.resolve().name, chip, tuple(findings), memory)


def as_documented(findings: Iterable[StartFinding]) -> list[StartFinding]:
    """Findings that rest on documents of the chip."""
    return [replace(one, grade="documented") for one in findings]


# Versions


def versions(chip: Chip | None) -> Iterator[StartFinding]:
    """Python, torch, the chip's package, and the libraries of the server."""
    torch = installed_version("torch")
    if torch is None:
        yield StartFinding("torch", FAIL, "torch is not installed", "pip install torch")
    else:
        yield StartFinding("torch", OK, f"torch {torch}, Python {platform.python_version()}")
    needed = ("aiohttp", "orjson", "prometheus-client", "transformers", "tokenizers", "jinja2")
    missing = [name for name in needed if installed_version(name) is None]
    if missing:
        remedy = "pip install 'joymigrate[serve]'"
        yield StartFinding("libraries", FAIL, f"not installed: {', '.join(missing)}", remedy)
    else:
        shown = ", ".join(
            f"{name} {installed_version(name)}" for name in ("transformers", "tokenizers")
        )
        yield StartFinding("libraries", OK, shown)
    if installed_version("llguidance") is None:
        yield StartFinding(
            "guided output", WARN, "llguidance is not installed: response_format is refused",
            "pip install 'joymigrate[serve]'",
        )  # fmt: skip
    if chip is not None and chip.distribution and chip.distribution != "torch":
        yield from as_documented([package(chip, torch)])


def package(chip: Chip, torch: str | None) -> StartFinding:
    """The vendor's package against torch, by the chip's own table of releases."""
    name = str(chip.distribution)
    have = installed_version(name)
    if have is None:
        return StartFinding(name, FAIL, f"{name} is not installed", f"pip install {name}")
    plain = (torch or "").split("+")[0]
    rows = [row for row in chip.versions if row.get("package") and row.get("torch")]
    row = next((row for row in rows if row["package"] == have), None)
    fitting = [str(row["package"]) for row in rows if row["torch"] == plain]
    if row is None:
        advice = f"known to fit torch {plain}: {', '.join(fitting)}" if fitting else ""
        return StartFinding(name, WARN, f"{name} {have} is not in the table of releases", advice)
    if row["torch"] != plain:
        advice = f"pip install torch=={row['torch']}"
        advice += f", or {name}=={fitting[0]}" if fitting else ""
        return StartFinding(
            name, FAIL, f"{name} {have} needs torch {row['torch']}, not {plain}", advice
        )
    sdk = f", released with {row['sdk']}" if row.get("sdk") else ""
    return StartFinding(name, OK, f"{name} {have} fits torch {plain}{sdk}")


def installed_version(name: str) -> str | None:
    """The version of a distribution, None where it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# The model


def read_config(folder: Path) -> dict[str, Any]:
    """config.json; raises `JoyError`."""
    from joymigrate.run.serve.engine.models import spec

    return spec.read_config(folder)


def model(wanted: StartRequest, config: Mapping[str, Any]) -> Iterator[StartFinding]:
    """Family, weights on disk, tokenizer, chat template."""
    from joymigrate.run.serve.engine.models import spec

    found, reason = spec.describe(config)
    name = str(config["model_type"])
    if found is not None:
        yield StartFinding("family", OK, f"{found.family}: the engine's own decoder")
    elif spec_of_transformers(name):
        yield StartFinding("family", OK, f"{name}: through transformers ({reason})")
    else:
        yield StartFinding(
            "family", FAIL,
            f"{name}: no causal language model of transformers {installed_version('transformers')}",
            "newer families need a newer transformers; others go through --engine",
        )  # fmt: skip
    folder = wanted.folder
    files = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    if any((folder / file).is_file() for file in files):
        yield StartFinding("tokenizer", OK, "there")
    else:
        yield StartFinding(
            "tokenizer", WARN, "none in the folder: requests bring token ids",
            "copy the tokenizer's files beside config.json",
        )  # fmt: skip
    yield template(folder, wanted.template)
    yield sampling(folder, wanted.generation, wanted.override)


def spec_of_transformers(name: str) -> bool:
    """Whether transformers has a causal model of this type."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    if importlib.util.find_spec("transformers") is None:
        return False
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def template(folder: Path, override: Path | None) -> StartFinding:
    """Whether chat requests can be served."""
    from joymigrate.run.serve.engine.http.templates import Templates

    try:
        found = Templates.of(folder, override)
    except JoyError as error:
        return StartFinding("chat template", FAIL, told_by(error), error.help or "")
    if not found.sources:
        return StartFinding(
            "chat template", WARN, "none: /v1/chat/completions answers 400",
            "serve with --chat-template FILE, or use /v1/completions",
        )  # fmt: skip
    return StartFinding("chat template", OK, ", ".join(found.sources))


def sampling(folder: Path, source: str, override: str) -> StartFinding:
    """How requests are sampled that do not say."""
    from joymigrate.run.serve.engine.http.defaults import load

    try:
        found = load(folder, source, override)
    except JoyError as error:
        return StartFinding("sampling", FAIL, told_by(error), error.help or "")
    return StartFinding("sampling", OK, f"by default {found.told() or 'neutral: temperature 1'}")


# Operators, port


def operators(wanted: StartRequest) -> Iterator[StartFinding]:
    """What the engine calls and the chip does not have."""
    if wanted.chip is None or wanted.chip.origin:
        return
    from joymigrate.profile import oplist

    try:
        listed = oplist.of(wanted.chip.name)
    except JoyError as error:
        yield StartFinding("operators", WARN, told_by(error), error.help or "")
        return
    poor = {name: listed.status(*split(name)) for name in OPERATORS}
    poor = {name: support for name, support in poor.items() if not support.supported}
    if not poor:
        yield StartFinding(
            "operators", OK, f"all {len(OPERATORS)} that the engine calls stay on the chip"
        )
        return
    for name, support in poor.items():
        remedy = support.alternative or support.note or "profile coverage says more"
        status = FAIL if support.status.value == "missing" else WARN
        yield StartFinding(f"operator {name}", status, support.status.value, remedy)


def split(name: str) -> tuple[str, str]:
    """`aten::add.Tensor` → name and overload."""
    base, _, overload = name.partition(".")
    return base, overload


def port(host: str, number: int) -> StartFinding:
    """Whether the address is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            return StartFinding(
                "address", FAIL, f"{host}:{number}: {error.strerror or error}", "--port"
            )
    loopback = re.fullmatch(r"127\..*|::1|localhost", host) is not None
    if loopback:
        return StartFinding("address", OK, f"{host}:{number} is free, for this machine only")
    return StartFinding(
        "address", OK, f"{host}:{number} is free, for the whole network: set --api-key"
    )
