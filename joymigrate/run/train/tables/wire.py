"""In what format rows and gradients are sent between processes; TorchRec's names for asking.

    codecs = get_qcomm_codecs_registry(QCommsConfig(CommType.FP16, CommType.BF16))
    sharder = EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs)
    DistributedModelParallel(model, sharders=[sharder])

Sums of bags, rows and gradients are float32 before and behind the way; both ends round alike, so
the pipeline has the numbers of the synchronous run in these formats too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.row_optimiser import RowOptimiser


class CommType(Enum):
    """Formats of what is sent."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    MX4 = "mx4"


TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Wire:
    """The types of rows on their way to those who asked, and of gradients on their way back."""

    rows: torch.dtype = torch.float32
    gradients: torch.dtype = torch.float32


@dataclass
class QCommsConfig:
    """TorchRec's; the loss scales are factors around the rounding."""

    forward_precision: CommType = CommType.FP32
    backward_precision: CommType = CommType.FP32
    forward_loss_scale: float | None = None
    backward_loss_scale: float | None = None


def get_qcomm_codecs_registry(
    qcomms_config: QCommsConfig, comm_ops: Any = None, device: Any = None
) -> Wire:
    """What a sharder takes. Raises `JoyError` for formats of 8 bits and less, and loss scales."""
    for precision in (qcomms_config.forward_precision, qcomms_config.backward_precision):
        if precision.value not in TYPES:
            raise JoyError(
                f"rows and gradients are not sent in {precision.name}",
                help=f"one of {', '.join(name.upper() for name in TYPES)}",
            )
    if qcomms_config.forward_loss_scale or qcomms_config.backward_loss_scale:
        raise JoyError("loss scales of what is sent are not supported", help="leave them out")
    forward, backward = qcomms_config.forward_precision, qcomms_config.backward_precision
    return Wire(TYPES[forward.value], TYPES[backward.value])


class TableSharder:
    """How the tables of one kind of collection are cut: `fused_params` and the wire's formats."""

    KIND = ""  # the class of collections

    def __init__(
        self,
        fused_params: Mapping[str, Any] | None = None,
        qcomm_codecs_registry: Wire | None = None,
    ) -> None:
        self.wire = qcomm_codecs_registry or Wire()
        options = dict(fused_params or {})
        kind = options.pop("optimizer", None)
        self.optimiser = None if kind is None else RowOptimiser.of(kind, options)


class EmbeddingBagCollectionSharder(TableSharder):
    """For `EmbeddingBagCollection`."""

    KIND = "EmbeddingBagCollection"


class EmbeddingCollectionSharder(TableSharder):
    """For `EmbeddingCollection`."""

    KIND = "EmbeddingCollection"


def sharder_of(collection: Any, sharders: Iterable[Any] | None) -> TableSharder:
    """The sharder of a collection; one that asks for nothing where none is given."""
    for sharder in sharders or ():
        if isinstance(sharder, TableSharder) and sharder.KIND in {
            kind.__name__ for kind in type(collection).__mro__
        }:
            return sharder
    return TableSharder()


def pack_values(values: Tensor, kind: torch.dtype) -> Tensor:
    """Numbers as they are sent: 16-bit ones as two bytes each, which every backend carries."""
    return values if kind == torch.float32 else values.to(kind).view(torch.int8)


def unpack_values(values: Tensor, kind: torch.dtype) -> Tensor:
    """What `pack_values` made, in float32."""
    return values if kind == torch.float32 else values.view(kind).float()
