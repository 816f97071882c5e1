"""Calls of the Ascend Transformer Boost library, as older engines make them."""

import torch
import torch_npu

heads, size, block = 2, 64, 16
cache = [torch.zeros(4, block, heads, size, device="npu") for _ in range(2)]
key, value = torch.randn(3, heads, size), torch.randn(3, heads, size)
slots = torch.tensor([16, 17, 18], dtype=torch.int32, device="npu")
torch_npu._npu_reshape_and_cache(key.npu(), value.npu(), *cache, slots)
query = torch.randn(1, heads, size)
out = torch.empty(1, heads, size, device="npu")
torch_npu._npu_paged_attention(
    query=query.npu(),
    key_cache=cache[0],
    value_cache=cache[1],
    num_kv_heads=heads,
    num_heads=heads,
    scale_value=0.125,
    block_table=torch.tensor([[1, 0]], dtype=torch.int32, device="npu"),
    context_lens=torch.tensor([3], dtype=torch.int32),  # on the host: the library wants it there
    out=out,
)
chosen = torch.einsum("hd,thd->ht", query[0], key).mul(0.125).softmax(-1)
plain = torch.einsum("ht,thd->hd", chosen, value)
print("apart", float((out.cpu()[0] - plain).abs().max()))
try:
    torch.ops.atb.npu_mla_preprocess(*[query.npu()] * 15, slots)
except NotImplementedError as error:
    print("said", error)
