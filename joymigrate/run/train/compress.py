"""Gradients in fewer bits between data-parallel processes, on any backend.

Every process gets one part of all gradients (all-to-all), adds it up in float32 and hands the mean
around (all-gather); what is sent is bfloat16, or int8 with one bfloat16 scale per block of 64
values. Sums never round: only what is sent does, and what int8 lost is added to the next
gradients (error feedback, which is not saved in checkpoints). FSDP2 needs the first half alone.
torch's own bfloat16 hook takes NCCL and XCCL only, and its int8 hooks fail on the CPU.

Shapes: W processes, C values of one process's part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError
from joymigrate.run.train.parallel import ParallelModel

if TYPE_CHECKING:
    import torch

BLOCK = 64  # values that share a scale
LOOK_EVERY = 64  # exchanges between two looks at the rounding error


@dataclass
class CompressionTraffic:
    """What this process sent, what float32 would have been, and the largest rounding error seen.

    Bytes count gradients alone, as rings send them: (W-1)/W of all values per half. `error` is
    relative to the gradients' norm.
    """

    dtype: str
    sent_bytes: int = 0
    float32_bytes: int = 0
    exchanges: int = 0
    error: float = 0.0
    lost: dict[Any, torch.Tensor] = field(default_factory=dict)  # by place, since the last step

    def report(self) -> dict[str, Any]:
        """For status.json."""
        ratio = self.sent_bytes / self.float32_bytes if self.float32_bytes else None
        return {
            "dtype": self.dtype,
            "sent_bytes": self.sent_bytes,
            "float32_bytes": self.float32_bytes,
            "ratio": None if ratio is None else round(ratio, 4),
            "exchanges": self.exchanges,
            "largest_rounding": round(self.error, 6),
        }


def attach(laid: ParallelModel, dtype: str) -> CompressionTraffic | None:
    """Exchange the gradients of `laid` as `dtype` from now on; None for float32."""
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    if dtype == "fp32" or laid.layout.data_ranks == 1:
        return None
    traffic = CompressionTraffic(dtype)
    if isinstance(laid.module, DistributedDataParallel):
        # DDP wants annotations that are types or none; postponed ones are texts
        laid.module.register_comm_hook(traffic, lambda state, bucket: ddp_hook(state, bucket))
        return traffic
    for part in laid.model.modules():
        if isinstance(part, FSDPModule):
            part.set_custom_reduce_scatter(reduce_scatter(traffic))
    return traffic


def ddp_hook(traffic: CompressionTraffic, bucket: Any) -> Any:
    """The mean of a bucket's gradients over all processes.

    Buckets are exchanged one after another in the order in which they are ready, which is the same
    everywhere; on a card both halves only enqueue.
    """
    import torch

    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(average(bucket.buffer(), traffic, place=bucket.index()))
    return future


def average(
    values: torch.Tensor, traffic: CompressionTraffic, group: Any = None, place: Any = 0
) -> torch.Tensor:
    """The mean of `values` (one dimension) over a group, in the place of `values`."""
    import torch
    import torch.distributed as dist

    count = dist.get_world_size(group)
    width = -(-values.numel() // count)
    rows_WC = torch.nn.functional.pad(values.float(), (0, count * width - values.numel()))
    mean_C = sum_parts(rows_WC.view(count, width), traffic, group, (place, "sum")) / count
    own = sent_of(mean_C.unsqueeze(0), traffic, (place, "mean"))
    everyone = own.new_empty((count, own.shape[1]))
    dist.all_gather_into_tensor(everyone, own, group=group)
    count_bytes(traffic, count, own.shape[1], width)
    made = decode(everyone, width, traffic.dtype).reshape(-1)[: values.numel()]
    values.copy_(made)
    return values


def sum_parts(
    rows_WC: torch.Tensor, traffic: CompressionTraffic, group: Any, place: Any
) -> torch.Tensor:
    """This process's part [C], added over all processes in float32."""
    import torch
    import torch.distributed as dist

    count, width = rows_WC.shape
    sent = sent_of(rows_WC, traffic, place)
    if traffic.exchanges % LOOK_EVERY == 0:
        lost = decode(sent, width, traffic.dtype) - rows_WC
        norm = float(rows_WC.norm())
        traffic.error = max(traffic.error, float(lost.norm()) / norm if norm > 0 else 0.0)
    traffic.exchanges += 1
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    count_bytes(traffic, count, sent.shape[1], width)
    return decode(received, width, traffic.dtype).sum(0)


def sent_of(rows_WC: torch.Tensor, traffic: CompressionTraffic, place: Any) -> torch.Tensor:
    """Rows as they are sent; what int8 loses of them is kept for the next time at this place."""
    if traffic.dtype != "int8":
        return encode(rows_WC, traffic.dtype)
    before = traffic.lost.get(place)
    if before is not None and before.shape == rows_WC.shape:  # DDP makes its buckets anew once
        rows_WC = rows_WC + before
    sent = encode(rows_WC, traffic.dtype)
    lost = rows_WC - decode(sent, rows_WC.shape[1], traffic.dtype)
    traffic.lost[place] = lost.nan_to_num(0.0, 0.0, 0.0)
    return sent


def count_bytes(traffic: CompressionTraffic, count: int, row_bytes: int, width: int) -> None:
    """One half of an exchange: every process sends a row to each of the others."""
    traffic.sent_bytes += (count - 1) * row_bytes
    traffic.float32_bytes += (count - 1) * width * 4


def encode(rows_WC: torch.Tensor, dtype: str) -> torch.Tensor:
    """Rows of float32 as rows of bytes (int8); a value that is no number makes its block none."""
    import torch

    if dtype == "bf16":
        return rows_WC.to(torch.bfloat16).contiguous().view(torch.int8)
    count, width = rows_WC.shape
    padded = torch.nn.functional.pad(rows_WC, (0, -width % BLOCK)).view(count, -1, BLOCK)
    # the largest value must fit after the scale was rounded
    scales = (padded.abs().amax(-1, keepdim=True) * (1.004 / 127)).to(torch.bfloat16)
    share = padded / scales.float().clamp(min=1e-38)  # -127 … 127
    # Roots, so that small values keep their first digits: Adam divides by their size.
    whole = (share.sign() * (share.abs() * 127).sqrt()).round().nan_to_num(0.0).clamp(-127, 127)
    values = whole.to(torch.int8).view(count, -1)
    return torch.cat([values, scales.view(count, -1).contiguous().view(torch.int8)], 1)


def decode(rows: torch.Tensor, width: int, dtype: str) -> torch.Tensor:
    """Rows of bytes as rows of `width` float32 values."""
    import torch

    if dtype == "bf16":
        return rows.contiguous().view(torch.bfloat16).float()
    blocks = -(-width // BLOCK)
    roots = rows[:, : blocks * BLOCK].float().view(len(rows), blocks, BLOCK)
    values = roots * roots.abs() / 127
    scales = rows[:, blocks * BLOCK :].contiguous().view(torch.bfloat16).float()
    return (values * scales.unsqueeze(-1)).view(len(rows), -1)[:, :width]


def reduce_scatter(traffic: CompressionTraffic) -> Any:
    """The first half as FSDP2's reduce-scatter."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    class Compressed(ReduceScatter):
        """Sends rounded gradients, adds them in float32."""

        def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
            """Plain memory."""
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(
            self,
            output_tensor: torch.Tensor,
            input_tensor: torch.Tensor,
            group: Any,
            op: Any,
            async_op: bool = False,
        ) -> None:
            """The sum, or the mean, of this process's part."""
            if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                raise JoyError(f"gradients cannot be compressed under {op}")
            count = dist.get_world_size(group)
            total_C = sum_parts(input_tensor.float().view(count, -1), traffic, group, id(self))
            output_tensor.copy_(total_C / count if op == dist.ReduceOp.AVG else total_C)

    return Compressed()
