"""Tiny Llama, Qwen2 and BERT of transformers: forward, backward, generation, CPU and device."""

import copy
import json

import torch
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM


def apart(ours, theirs):
    return (ours.detach().cpu() - theirs.detach()).abs().max().item() / max(1.0, theirs.abs().max().item())


def main():
    torch.set_num_threads(1)
    size = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    decoder = dict(**size, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=None, pad_token_id=0)
    kinds = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**decoder)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**decoder)),
        "bert": lambda: BertForMaskedLM(BertConfig(**size, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
    }
    found = {}
    for name, make in kinds.items():
        torch.manual_seed(0)
        host = make().eval()
        device = copy.deepcopy(host).npu()
        ids = torch.randint(1, 64, (2, 12))
        wanted, got = host(input_ids=ids, labels=ids), device(input_ids=ids.npu(), labels=ids.npu())
        wanted.loss.backward()
        got.loss.backward()
        worst = max(
            apart(a.grad, b.grad) for a, b in zip(device.parameters(), host.parameters()) if b.grad is not None
        )
        equal = True
        if name != "bert":
            ask = dict(max_new_tokens=10, do_sample=False)
            equal = torch.equal(device.generate(ids.npu(), **ask).cpu(), host.generate(ids, **ask))
        found[name] = {"output": apart(got.logits, wanted.logits), "gradient": worst, "tokens_equal": equal}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
