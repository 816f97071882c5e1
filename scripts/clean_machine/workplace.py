"""The files that the commands are tried on: a CUDA project, a tiny model, data, a cluster."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

# A model of the Llama kind without a library for models: weights by torch, a byte-level tokenizer.
MODEL = """
import json, pathlib, sys, torch
from safetensors.torch import save_file

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
wide, deep, words = 32, 2, 260
torch.manual_seed(0)
def weight(*shape): return torch.randn(*shape) * 0.05
state = {"model.embed_tokens.weight": weight(words, wide), "lm_head.weight": weight(words, wide),
         "model.norm.weight": torch.ones(wide)}
for n in range(deep):
    at = f"model.layers.{n}."
    for name in "qkvo":
        state[f"{at}self_attn.{name}_proj.weight"] = weight(wide, wide)
    for name in ("gate", "up"):
        state[f"{at}mlp.{name}_proj.weight"] = weight(2 * wide, wide)
    state[at + "mlp.down_proj.weight"] = weight(wide, 2 * wide)
    for name in ("input", "post_attention"):
        state[f"{at}{name}_layernorm.weight"] = torch.ones(wide)
save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
config = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=wide,
    intermediate_size=2 * wide, num_hidden_layers=deep, num_attention_heads=4,
    num_key_value_heads=4, vocab_size=words, max_position_embeddings=256, rms_norm_eps=1e-6,
    rope_theta=10000.0, hidden_act="silu", bos_token_id=256, eos_token_id=257,
    tie_word_embeddings=False, dtype="float32")
(folder / "config.json").write_text(json.dumps(config))
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
signs, more = {}, 0
for byte in range(256):
    signs[byte] = chr(byte) if byte in plain else chr(256 + more)
    more += byte not in plain
vocabulary = {sign: byte for byte, sign in signs.items()}
special = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True} for i, text in ((256, "<s>"), (257, "</s>"))]
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
    "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocabulary, "merges": [],
              "continuing_subword_prefix": None, "end_of_word_suffix": None,
              "fuse_unk": False, "byte_fallback": False}}
(folder / "tokenizer.json").write_text(json.dumps(tokenizer))
template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\\n{% endfor %}"
(folder / "tokenizer_config.json").write_text(json.dumps({
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
    "chat_template": template}))
"""

STEP = """
import torch

device = torch.device("cuda")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
model = model.to(device)
optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(4):
    x = torch.ones(4, 8, device=device)
    loss = model(x).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    torch.cuda.synchronize()
print(f"loss {loss.item():.4f}")
"""

JOB = """
name: tiny
model:
  from_config:
    {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1,
     num_attention_heads: 2, num_key_value_heads: 2}
data: {train: text.jsonl, max_length: 32}
task: pretrain
steps: 3
batch: {size: 2}
device: cpu
"""

INVENTORY = """
nodes:
- {name: a, kind: gpu-8, cards: 8, leaf: l0}
"""

JOBS = """
jobs:
- {name: one, kind: gpu-8, pods: 1, cards_per_pod: 2, minutes: 10}
"""

TRAFFIC = "at,rate\n" + "".join(
    f"{3600 * hour},{40 + hour // 24 + hour % 24}\n" for hour in range(24 * 12)
)
TRACE = """name,kind,pods,cards_per_pod,arrival_minutes,minutes
one,gpu-8,1,2,0,10
two,gpu-8,1,8,5,30
"""

# A recording of three calls, as `profile record` writes one.
OPERATORS = """
{"schema": "joymigrate.trace/1", "device": "cuda:0", "torch": "2.13.0", "steps": 1}
{"kind": "op", "id": 0, "op": "aten::addmm", "overload": "", "calls": 4, "self_us": 40.0}
{"kind": "op", "id": 1, "op": "aten::gelu", "overload": "", "calls": 4, "self_us": 8.0}
{"kind": "op", "id": 2, "op": "aten::lgamma", "overload": "", "calls": 1, "self_us": 1.0}
"""

RAY_JOBS = """
jobs:
- {name: hello, kind: cpu, pods: 1, cards_per_pod: 0, command: [python, -c, "print('hello')"]}
"""

GATEWAY = """
listen: 127.0.0.1:0
upstreams:
  old: {url: "http://127.0.0.1:9", role: primary}
  new: {url: "http://127.0.0.1:10", role: standby}
rollout: {start: manual}
"""

MANIFEST = """
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
data: {one: two}
"""


def filled(folder: Path, example: Path) -> None:
    """Put everything but the model into `folder`."""
    folder.mkdir(parents=True)
    shutil.copytree(example, folder / "project")
    (folder / "model").mkdir()  # model.py fills it where torch is
    cpu = STEP.replace('"cuda"', '"cpu"').replace("    torch.cuda.synchronize()\n", "")
    texts = [json.dumps({"text": f"line {n}: " + "word " * 12}) for n in range(64)]
    prompts = [json.dumps({"id": str(n), "prompt": f"line {n}"}) for n in range(3)]
    files = {
        "step.py": STEP,
        "cpu.py": cpu,
        "job.yaml": JOB,
        "text.jsonl": "\n".join(texts) + "\n",
        "prompts.jsonl": "\n".join(prompts) + "\n",
        "inventory.yaml": INVENTORY,
        "jobs.yaml": JOBS,
        "trace.csv": TRACE,
        "traffic.csv": TRAFFIC,
        "trace.jsonl": OPERATORS,
        "ray.yaml": RAY_JOBS,
        "gateway.yaml": GATEWAY,
        "manifest.yaml": MANIFEST,
        "model.py": MODEL,
    }
    for name, text in files.items():
        (folder / name).write_text(text.lstrip("\n"), encoding="utf-8")
