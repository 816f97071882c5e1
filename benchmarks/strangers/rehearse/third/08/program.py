"""Multimodal rotary embedding of a decode step: positions are a slice of a persistent buffer."""
import torch
import torch_npu

torch.npu.set_device(0)
max_tokens, n, head, q_heads, kv_heads = 512, 17, 128, 8, 2
buffer = torch.zeros(3, max_tokens + 1, dtype=torch.int64, device="npu")
buffer[:, :n] = torch.arange(n, device="npu")
inv = 1.0 / (10000 ** (torch.arange(0, head, 2, dtype=torch.float32) / head))
angles = torch.outer(torch.arange(1024, dtype=torch.float32), inv)
cache = torch.cat([angles.cos(), angles.sin()], dim=-1).to(torch.bfloat16).to("npu")
query = torch.randn(n, q_heads * head, dtype=torch.bfloat16, device="npu")
key = torch.randn(n, kv_heads * head, dtype=torch.bfloat16, device="npu")
positions = buffer[:, :n]
q, k = torch_npu.npu_mrope(positions, query, key, cache, head, mrope_section=[16, 24, 24], rotary_mode="half")
print(q.float().mean().item(), k.float().mean().item())
