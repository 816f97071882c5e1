"""Cosines and sines of positions by way of bfloat16, as a port's fused rotary table keeps them."""
import torch
from transformers.models.llama import modeling_llama

exact = modeling_llama.LlamaRotaryEmbedding.forward


def forward(self, x, position_ids):
    cos, sin = exact(self, x, position_ids)
    return cos.to(torch.bfloat16).to(x.dtype), sin.to(torch.bfloat16).to(x.dtype)


modeling_llama.LlamaRotaryEmbedding.forward = forward
