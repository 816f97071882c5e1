"""Continues prompts on the NPU; prints what was asked for as JSON on the last line."""

import json
import sys

import torch

from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.types import EngineOptions, Request, Sampling

folder, asked = sys.argv[1], json.loads(sys.argv[2])
found = {}
for dtype, attention in (("float32", "auto"), ("bfloat16", "auto"), ("bfloat16", "gather")):
    options = EngineOptions(
        dtype=dtype,
        device="npu",
        attention=attention,
        block_size=16,
        kv_blocks=24,
        max_batch_tokens=20,
        max_model_len=100,
    )
    loaded = load_engine(folder, options)
    engine = loaded.engine
    assert engine.cache.keys[0].device.type == "npu"
    for i, ids in enumerate(asked):
        sampling = Sampling(
            max_tokens=8, temperature=0 if i else 0.8, seed=7, top_p=0.9, prompt_logprobs=0
        )
        engine.add(Request(str(i), tuple(ids), sampling))
    made = [[] for _ in asked]
    logprobs = [[] for _ in asked]
    while not engine.idle:
        for output in engine.step():
            made[int(output.request_id)] += output.new_ids
            scored = (output.prompt_logprobs or ())[1:]
            logprobs[int(output.request_id)] += [one.logprob for one in scored]
    found[f"{dtype} {attention}"] = {
        "tokens": made,
        "logprobs": logprobs,
        "attention": loaded.info.attention,
        "rehearsal": loaded.info.rehearsal,
        "device": loaded.info.device,
    }
torch.npu.synchronize()
print(json.dumps(found))
