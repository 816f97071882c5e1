"""Loads a checkpoint whose weights are float8 with a scale per block of rows, and runs it in bfloat16."""
import torch
import torch_npu

ROWS, COLUMNS, BLOCK = 512, 256, 128


def checkpoint():
    """What the file holds: a float8 weight and the scales of its blocks."""
    weight = torch.randn(ROWS, COLUMNS)
    scale = weight.view(-1, BLOCK, COLUMNS).abs().amax((1, 2)) / 448
    small = weight / scale.repeat_interleave(BLOCK)[:, None]
    return {"weight": small.to(torch.float8_e4m3fn), "weight_scale_inv": scale}


def load(state, device):
    weight = state["weight"].to(device)
    scale = state["weight_scale_inv"].to(device).repeat_interleave(BLOCK)[:, None]
    return (weight.to(torch.bfloat16) * scale).to(torch.bfloat16)


torch.manual_seed(0)
weight = load(checkpoint(), "npu:0")
x = torch.randn(8, COLUMNS, dtype=torch.bfloat16).npu()
out = x @ weight.t()
torch.npu.synchronize()
print(tuple(out.shape), float(out.float().std()))
