"""The engine on the simulated NPU gives the tokens that it gives on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.types import EngineOptions, Request, Sampling
from tests.run.serve.engine.models import drain, prompts, save, tokens

LIMIT = 0.1
PROGRAM = Path(__file__).parent / "programs" / "continue_on_chip.py"


def on_cpu(
    folder: Path, asked: list[list[int]], dtype: str
) -> tuple[list[list[int]], list[list[float]]]:
    """Tokens, and log-probabilities of the prompts."""
    options = EngineOptions(dtype=dtype, kv_blocks=24, max_batch_tokens=20, max_model_len=100)
    engine = load_engine(folder, options).engine
    for i, ids in enumerate(asked):
        sampling = Sampling(
            max_tokens=8, temperature=0 if i else 0.8, seed=7, top_p=0.9, prompt_logprobs=0
        )
        engine.add(Request(str(i), tuple(ids), sampling))
    found = drain(engine)
    texts = [found[str(i), 0] for i in range(len(asked))]
    scored = [[one.logprob for one in text[0].prompt_logprobs or () if one] for text in texts]
    return [tokens(text) for text in texts], scored


@pytest.mark.compiler
def test_tokens_on_the_npu_are_those_of_the_cpu(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(folder, "qwen3", head_dim=64)  # a size that the vendor's attention takes
    asked = prompts([3, 25, 34])
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), str(folder), json.dumps(asked)]
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", "rehearse", "--", *command],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    single = found["float32 auto"]
    want, scores = on_cpu(folder, asked, "float32")
    assert single["tokens"] == want
    assert (single["attention"], single["device"], single["rehearsal"]) == ("gather", "npu", True)
    half = found["bfloat16 auto"]
    assert half["attention"] == "vendor"
    # bfloat16 keeps 8 bits of scores up to 8: a few roundings of 2^-6 each, here within 0.1. The
    # same model in bfloat16 on the CPU is as far from float32.
    for name in ("bfloat16 auto", "bfloat16 gather"):
        for got, exact in zip(found[name]["logprobs"], scores, strict=True):
            assert got == pytest.approx(exact, abs=LIMIT)
    for got, exact in zip(on_cpu(folder, asked, "bfloat16")[1], scores, strict=True):
        assert got == pytest.approx(exact, abs=LIMIT)
    assert "float64" not in done.stderr
