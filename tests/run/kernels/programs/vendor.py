"""Runs on the simulated chip: how our kernels call the vendor's, and a patched model.

Writes what was seen as JSON to the file in argv[1].
"""

import json
import sys

import torch
import torch_npu
from transformers import AutoConfig, AutoModelForCausalLM

from joymigrate.run import kernels
from joymigrate.run.kernels.mask import CandidateMask, Causal, Dense, Full, JaggedMask, WindowMask
from joymigrate.run.kernels.weights import Int4Weight, Int8Weight

DEVICE = "npu"
seen = {}
calls = []


def recorded(name):
    """Note how the vendor's function is called, and call it."""
    original = getattr(torch_npu, name)

    def call(*args, **kwargs):
        calls.append((name, args, kwargs))
        return original(*args, **kwargs)

    setattr(torch_npu, name, call)


for name in (
    "npu_fusion_attention", "npu_rotary_mul", "npu_swiglu", "npu_rms_norm", "npu_add_rms_norm",
    "npu_quant_matmul", "npu_weight_quant_batchmatmul", "npu_grouped_matmul_add_",
    "npu_apply_adam_w",
):  # fmt: skip
    recorded(name)


def plain(value):
    if isinstance(value, torch.Tensor):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    return value if isinstance(value, (int, float, str, list, bool, type(None))) else str(value)


def last():
    name, args, kwargs = calls[-1]
    return {
        "name": name,
        "args": [plain(arg) for arg in args],
        "kwargs": {key: plain(value) for key, value in kwargs.items()},
    }


def rand(*shape, dtype=torch.float32):
    return (
        torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))
        .to(dtype)
        .to(DEVICE)
    )


attention = kernels.op("attention")
q, k, v = rand(2, 4, 5, 16), rand(2, 2, 9, 16), rand(2, 2, 9, 16)
hidden = torch.rand(2, 1, 5, 9, generator=torch.Generator().manual_seed(0)) > 0.5
for label, mask in {
    "full": Full(), "causal": Causal(), "window": WindowMask(3), "dense": Dense(hidden.to(DEVICE)),
}.items():  # fmt: skip
    attention(q, k, v, mask, request="vendor")
    seen[label] = last()
    given = calls[-1][2].get("atten_mask")
    if label == "causal":
        upper = torch.ones(2048, 2048).triu(1).bool()
        seen["causal mask is the upper triangle"] = torch.equal(given.cpu(), upper)
    if label == "dense":
        seen["dense mask is inverted"] = torch.equal(given.cpu(), ~hidden)

tokens = rand(12, 4, 16)
offsets = torch.tensor([0, 5, 5, 12], device=DEVICE)
attention(tokens, tokens, tokens, JaggedMask(offsets, Causal()), request="vendor")
seen["jagged"] = last()

refused = {}
for label, arguments in {
    "more queries than keys": (k, q[:, :2], q[:, :2], Causal()),
    "packed candidates": (tokens, tokens, tokens, JaggedMask(offsets, CandidateMask(2))),
}.items():
    try:
        attention(*arguments, request="vendor")
    except Exception as error:
        refused[label] = f"{type(error).__name__}: {error}"
seen["refused"] = refused
seen["chosen for jagged"] = attention.choose_for(
    attention.call_of(tokens, tokens, tokens, JaggedMask(offsets, Causal()))
).implementation

x = rand(3, 32, dtype=torch.bfloat16)
cos, sin = rand(1, 1, 3, 8), rand(1, 1, 3, 8)
kernels.op("rotary")(rand(2, 2, 3, 8), cos, sin, interleaved=True, request="vendor")
seen["rotary"] = last()
kernels.op("swiglu")(x, x, request="vendor")
seen["swiglu"] = last()
weight = Int8Weight(
    torch.ones(8, 32, dtype=torch.int8, device=DEVICE), torch.ones(8, device=DEVICE)
)
kernels.op("quant_matmul")(x, weight)
seen["quant_matmul"] = last()
codes = torch.randint(0, 16, (16, 32), generator=torch.Generator().manual_seed(0)).to(DEVICE)
four = Int4Weight(Int4Weight.pack(codes), torch.ones(16, 1, device=DEVICE))
kernels.op("int4_matmul")(x, four)
seen["int4_matmul"] = last()
kernels.op("matmul_add_fp32")(x, x, torch.zeros(32, 32, device=DEVICE))
seen["matmul_add_fp32"] = last()
param = torch.ones(4, device=DEVICE, requires_grad=True)
optimiser = kernels.AdamW([param], lr=0.1, request="vendor")
for _ in range(2):
    param.grad = torch.ones_like(param)
    optimiser.step()
seen["adamw"] = last()

models = {}
sizes = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "max_position_embeddings": 64,
}  # fmt: skip
for family in ("llama", "qwen2", "qwen3", "mistral"):
    torch.manual_seed(0)
    model = (
        AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes)).to(DEVICE).train()
    )
    ids = torch.randint(3, 61, (2, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    batch = {key: value.to(DEVICE) for key, value in batch.items()}

    def step(model=model, batch=batch):
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        return loss.item(), [p.grad.cpu().clone() for p in model.parameters()]

    loss, grads = step()
    report = kernels.apply(model, "ascend")
    patched_loss, patched = step()
    report.undo()
    undone, _ = step()
    models[family] = {
        "loss": abs(loss - patched_loss),
        "undone": abs(loss - undone),
        "gradient": max(
            float((a - b).abs().max() / (b.abs().max() + 1e-8))
            for a, b in zip(patched, grads, strict=True)
        ),
        "replaced": sorted({(item.op, item.implementation) for item in report.replaced}),
    }
seen["models"] = models
with open(sys.argv[1], "w") as file:
    json.dump(seen, file)
