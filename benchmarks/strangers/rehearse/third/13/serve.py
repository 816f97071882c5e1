"""Serve a model with DeepSpeed-FastGen."""
import sys

import mii

pipe = mii.pipeline(sys.argv[1] if len(sys.argv) > 1 else "mistralai/Mistral-7B-v0.1")
for answer in pipe(["DeepSpeed is", "Seattle is"], max_new_tokens=64):
    print(answer.generated_text)
