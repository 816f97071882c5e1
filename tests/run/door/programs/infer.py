"""Inference with `device_map="cuda"`: weights of a folder, generated tokens, times by events."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
LlamaForCausalLM(config).save_pretrained("tiny")
model = AutoModelForCausalLM.from_pretrained("tiny", device_map="cuda", dtype=torch.float16)
print("on", model.device, {p.device for p in model.parameters()})
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
ids = torch.arange(8, device="cuda").unsqueeze(0)
start.record()
out = model.generate(ids, max_new_tokens=8, do_sample=False)
end.record()
torch.cuda.synchronize()
print("tokens", out.device, out.tolist(), start.elapsed_time(end) > 0)
