"""Calls that chips refuse and calls that they take, from public threads and the vendor's documents.

Rehearsed with --strict; prints a line for each: refused.py 910B | 310P | 910A.
"""

import sys
import warnings

import torch
import torch.nn.functional as F
import torch_npu
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
soc = sys.argv[1]
BAD, GOOD = {}, {}


def bad(s="910B"):
    def d(f):
        BAD[f.__name__] = (f, s)
        return f

    return d


def good(s="910B"):
    def d(f):
        GOOD[f.__name__] = (f, s)
        return f

    return d


def i8(*s):
    return torch.randint(-5, 5, s, dtype=torch.int8).npu()


def h(*s, dtype=torch.float16):
    return torch.randn(*s, dtype=torch.float32).to(dtype).npu()


bf = torch.bfloat16


@bad()
def quant_matmul_fp16_scale():  # vllm-ascend 12907
    return torch_npu.npu_quant_matmul(i8(32, 64), i8(64, 128), h(128), output_dtype=torch.float16)


@bad("310P")
def rms_norm_bf16():  # vllm-ascend 6490
    return torch_npu.npu_rms_norm(h(4, 64, dtype=bf), h(64, dtype=bf))


@bad("910A")
def cast_bf16():  # LlamaFactory 4339
    return torch.ones(4).npu().to(bf)


@bad()
def fusion_attention_mask_b11s():  # vllm-ascend 6573
    q = h(2, 4, 150, 64)
    m = torch.zeros(2, 1, 1, 150, dtype=torch.bool).npu()
    return torch_npu.npu_fusion_attention(q, q, q, 4, "BNSD", atten_mask=m, scale=0.125)[0]


@bad()
def fia_tnd_d256():  # vllm-ascend 9632
    q = h(16, 4, 256, dtype=bf)
    k = h(16, 4, 256, dtype=bf)
    m = torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1).npu()
    return torch_npu.npu_fused_infer_attention_score(
        q,
        k,
        k,
        num_heads=4,
        num_key_value_heads=4,
        input_layout="TND",
        scale=0.06,
        sparse_mode=3,
        atten_mask=m,
        actual_seq_lengths=[16],
        actual_seq_lengths_kv=[16],
    )[0]


@bad()
def mm_int32():
    return torch.mm(
        torch.ones(4, 4, dtype=torch.int32).npu(), torch.ones(4, 4, dtype=torch.int32).npu()
    )


@bad()
def mm_int8():
    return torch.mm(i8(16, 16), i8(16, 16))


@bad()
def add_9d():
    x = torch.ones([1] * 8 + [3]).npu()
    return x + x


@bad()
def fp8_on_910b():
    return torch.randn(8, 8).npu().to(torch.float8_e4m3fn)


@bad()
def add_uint16():
    x = torch.ones(4, dtype=torch.uint16).npu()
    return x + x


@bad()
def matmul_complex():
    x = torch.ones(4, 4, dtype=torch.complex64).npu()
    return x @ x


@bad()
def fusion_attention_d1024():
    q = h(1, 2, 32, 1024)
    return torch_npu.npu_fusion_attention(q, q, q, 2, "BNSD", scale=0.03)[0]


@bad()
def rms_norm_gamma_other():
    return torch_npu.npu_rms_norm(h(4, 64), h(32))


@bad()
def dynamic_quant_fp32():
    return torch_npu.npu_dynamic_quant(torch.randn(4, 64).npu())


@bad()
def add_rms_norm_mixed():
    return torch_npu.npu_add_rms_norm(h(4, 64), torch.randn(4, 64).npu(), h(64))


@bad("910A")
def layer_norm_bf16():
    return F.layer_norm(torch.ones(4, 8, dtype=bf).npu(), (8,))


@bad()
def bmm_int64():
    x = torch.ones(2, 4, 4, dtype=torch.int64).npu()
    return torch.bmm(x, x)


@bad()
def swiglu_int():
    return torch_npu.npu_swiglu(torch.ones(4, 8, dtype=torch.int32).npu())


@bad()
def permute_copy_9d():
    x = torch.ones(1, 1, 2, 1, 2, 1, 2, 1, 2).npu()
    return x.permute(8, 7, 6, 5, 4, 3, 2, 1, 0).contiguous()


@good()
def quant_matmul_fp32_scale():
    return torch_npu.npu_quant_matmul(
        i8(32, 64), i8(64, 128), torch.rand(128).npu(), output_dtype=bf
    )


@good()
def quant_matmul_int64_scale():
    s = torch_npu.npu_trans_quant_param(torch.rand(128).npu())
    return torch_npu.npu_quant_matmul(i8(32, 64), i8(64, 128), s, output_dtype=torch.float16)


@good("310P")
def rms_norm_fp16():
    return torch_npu.npu_rms_norm(h(4, 64), h(64))


@good()
def cast_bf16_910b():
    return torch.ones(4).npu().to(bf) + 1


@good()
def fusion_attention_masks():
    q = h(2, 4, 128, 64)
    for s in ((2, 4, 128, 128), (2, 1, 128, 128), (1, 1, 128, 128), (128, 128)):
        m = torch.triu(torch.ones(s, dtype=torch.bool), 1).npu()
        o = torch_npu.npu_fusion_attention(q, q, q, 4, "BNSD", atten_mask=m, scale=0.125)[0]
    return o


@good()
def fia_tnd_d128():
    q = h(16, 4, 128, dtype=bf)
    m = torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1).npu()
    return torch_npu.npu_fused_infer_attention_score(
        q,
        q,
        q,
        num_heads=4,
        num_key_value_heads=4,
        input_layout="TND",
        scale=0.06,
        sparse_mode=3,
        atten_mask=m,
        actual_seq_lengths=[16],
        actual_seq_lengths_kv=[16],
    )[0]


@good()
def fia_bnsd():
    q = h(1, 8, 64, 128)
    k = h(1, 2, 64, 128)
    return torch_npu.npu_fused_infer_attention_score(
        q, k, k, num_heads=8, num_key_value_heads=2, input_layout="BNSD", scale=0.09
    )[0]


@good()
def mm_floats():
    for d in (torch.float16, bf, torch.float32):
        x = h(16, 16, dtype=d)
        o = x @ x
        torch.bmm(x[None], x[None])
        torch.addmm(x[0], x, x)
    return o


@good()
def index_put():
    x = torch.zeros(8, 4).npu()
    i = torch.tensor([0, 1, 1]).npu()
    x.index_put_((i,), torch.ones(3, 4).npu(), accumulate=True)
    return x[i]


@good()
def add_8d():
    x = torch.ones([1] * 7 + [3]).npu()
    return x + x


@good()
def complex_add():
    x = torch.ones(4, dtype=torch.complex64).npu()
    return x + x, x * x


@good()
def cumsum_kinds():
    return [
        torch.cumsum(h(4, 8, dtype=d), 1) for d in (bf, torch.float16, torch.float32)
    ], torch.cumsum(torch.ones(4, dtype=torch.int64).npu(), 0)


@good()
def dynamic_quant_bf16():
    return torch_npu.npu_dynamic_quant(h(4, 64, dtype=bf))


@good()
def add_rms_norm_bf16():
    return torch_npu.npu_add_rms_norm(h(4, 64, dtype=bf), h(4, 64, dtype=bf), h(64, dtype=bf))


@good()
def grouped_matmul():
    x = h(8, 32, dtype=bf)
    w = h(4, 32, 16, dtype=bf)
    g = torch.tensor([2, 4, 6, 8]).npu()
    return torch_npu.npu_grouped_matmul(
        [x], [w], group_list=g, split_item=3, group_type=0, group_list_type=0
    )


@good()
def moe_gating():
    return torch_npu.npu_moe_gating_top_k_softmax(torch.randn(16, 64).npu(), k=8)


@good()
def sorting():
    x = h(4, 16)
    return (
        torch.topk(x, 3),
        torch.sort(x),
        torch.argsort(x.float()),
        torch.sort(torch.arange(5).npu()),
    )


@good()
def convnet_fp16():
    m = (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * 16, 4),
        )
        .npu()
        .half()
    )
    m(h(2, 3, 8, 8)).float().sum().backward()
    return m[0].weight.grad


@good()
def gathers():
    e = nn.Embedding(10, 8).npu()
    i = torch.tensor([[1, 2], [3, 3]]).npu()
    o = e(i)
    o.sum().backward()
    s = torch.zeros(10).npu().scatter_add_(0, i.view(-1), torch.ones(4).npu())
    return torch.index_select(s, 0, i[0]), torch.gather(
        o, 2, torch.zeros(2, 2, 1, dtype=torch.int64).npu()
    )


@good()
def amp_training():
    m = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10)).npu()
    opt = torch.optim.AdamW(m.parameters(), fused=False)
    sc = torch.amp.GradScaler("npu")
    for _ in range(2):
        with torch.autocast("npu", dtype=torch.float16):
            loss = F.cross_entropy(m(torch.randn(8, 16).npu()), torch.randint(0, 10, (8,)).npu())
        opt.zero_grad()
        sc.scale(loss).backward()
        sc.unscale_(opt)
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        sc.step(opt)
        sc.update()
    return loss


for kind, table in (("BAD", BAD), ("GOOD", GOOD)):
    for name, (f, s) in table.items():
        if s != soc:
            continue
        try:
            f()
            torch.npu.synchronize()
            print(kind, name, "PASSED")
        except Exception as e:
            text = " ".join(str(e).split())
            print(kind, name, "STOPPED", type(e).__name__, text[:230])
