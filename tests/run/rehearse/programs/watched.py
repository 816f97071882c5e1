"""Programs whose numbers are watched; the first argument names one."""

import sys

import torch
import torch.nn.functional as F
import torch_npu

torch.manual_seed(0)
DEVICE = "npu:0"


def overflows() -> None:
    """The product leaves float16; what follows has it from there."""
    x = torch.full((2, 64), 60.0).half().to(DEVICE)
    y = x @ torch.full((64, 64), 30.0).half().to(DEVICE)
    torch.softmax(y - y.mean(), -1)


def takes_a_root() -> None:
    """NaN out of a negative number, in place."""
    torch.tensor([-1.0, 4.0], device=DEVICE).sqrt_()


def drops_a_bias() -> None:
    """An additive bias as a boolean mask, and a mask of 0 and -inf as one."""
    q = torch.randn(1, 2, 16, 64).half().to(DEVICE)
    bias = torch.randn(1, 2, 16, 16).half().to(DEVICE)
    F.scaled_dot_product_attention(q, q, q, attn_mask=torch.logical_not(bias.bool()))
    mask = torch.zeros(1, 1, 16, 16).half().to(DEVICE)
    mask = mask.masked_fill(torch.ones(16, 16).triu(1).bool().to(DEVICE), float("-inf"))
    F.scaled_dot_product_attention(q, q, q, attn_mask=torch.logical_not(mask.bool()))


def inverts_masks() -> None:
    """Masks of the package's attention, in which True is left out: twice the wrong way round (of
    an additive one; as torch's own attention wants it), and three times right."""
    q = torch.randn(1, 2, 16, 64).half().to(DEVICE)
    low = torch.zeros(1, 1, 16, 16).bfloat16()
    low[..., 9:] = -10000.0
    low = low.to(DEVICE)
    past = torch.ones(16, 16).bool().tril().to(DEVICE)
    for mask in (~low.bool(), past, low.bool(), low < -1.0, ~past):
        torch_npu.npu_fusion_attention(q, q, q, 2, "BNSD", atten_mask=mask, scale=0.125)


def leaves_rows() -> None:
    """Rows that no expert is given."""
    x, w = torch.randn(8, 16).half().npu(), torch.randn(3, 16, 32).half().npu()
    ends = torch.tensor([2, 4, 5]).npu()
    torch_npu.npu_grouped_matmul([x], [w], group_list=ends, split_item=3, group_type=0)


def masks() -> None:
    """Nothing here is wrong: masks, a pole that is chosen away, a scaler that looks itself."""
    scores = torch.randn(2, 8, 8, device=DEVICE).half()
    low = torch.full((8, 8), torch.finfo(torch.float16).min, device=DEVICE, dtype=torch.float16)
    torch.softmax(scores + low.triu(1), -1)
    torch.softmax(scores.float() + torch.full((8, 8), float("-inf"), device=DEVICE).triu(1), -1)
    torch.softmax(scores.masked_fill(scores > 0, float("-inf")), -1)
    x = torch.tensor([0.0, 1.0, 2.0], device=DEVICE)
    torch.where(x == 0, torch.zeros_like(x), 1 / x)
    x.log().clamp(min=-100)
    torch.minimum(torch.full((3,), float("inf"), device=DEVICE), x)
    model = torch.nn.Linear(16, 4).to(DEVICE)
    optimiser = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("npu", init_scale=2.0**30)
    for _ in range(2):
        with torch.autocast("npu", dtype=torch.float16):
            loss = model(torch.randn(8, 16, device=DEVICE)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad()


def reported() -> None:
    """Calls of which people reported something, and their neighbours."""
    q, k = torch.randn(1, 2, 1, 64).half().npu(), torch.randn(1, 2, 1024, 64).half().npu()
    call = torch_npu.npu_fused_infer_attention_score
    masked = torch.zeros(1, 1, 1, 1024, dtype=torch.bool).npu()
    call(q, k, k, num_heads=2, input_layout="BNSD", scale=0.1, atten_mask=masked)
    short = torch.zeros(1, 1, 1, 512, dtype=torch.bool).npu()
    half = k[:, :, :512].contiguous()
    call(q, half, half, num_heads=2, input_layout="BNSD", scale=0.1, atten_mask=short)
    torch.npu.config.allow_internal_format = True
    x, plain = torch.randn(32, 32).half().npu(), torch.randn(32, 32).half().npu()
    buffer = torch_npu.npu_format_cast(x, 29)
    for k in (2000, 50):
        wide = torch.randn(2, 2048).half().npu()
        torch_npu.npu_top_k_top_p(wide, wide[:, 0].sigmoid(), torch.full((2,), k).int().npu())
    with torch.npu.graph(torch.npu.NPUGraph()):
        plain.copy_(x)
        buffer.copy_(x)
        torch_npu.npu_format_cast(x, 29)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
