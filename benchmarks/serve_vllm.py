"""Our engine and vLLM on a CPU, one thread each, same model, same client: tokens per CPU-second.

    python -m benchmarks.serve_vllm --vllm /path/to/venv/bin/python --make FOLDER
    python -m benchmarks.serve_vllm --vllm /path/to/venv/bin/python --model FOLDER [--w8a8 FOLDER]
                                    [--concurrency 1,8,32] [-- more options of serve_load]

`--make` writes the model of `engine_speed` with a tokenizer, and stops. `--w8a8` serves a quantised
copy by our engine and by vLLM, too. Servers start one after the other and stay; the rounds of
`serve_load` alternate between them, with the processor time of each and all its children.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

from benchmarks import engine_speed

START_SECONDS = 600.0


def make(folder: Path) -> None:
    """A model of random numbers, with a tokenizer that knows every id."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    engine_speed.make_model(folder)
    words = {f"w{number}": number for number in range(engine_speed.VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="w0", eos_token="w1", pad_token="w2"
    ).save_pretrained(folder)


def servers(options: argparse.Namespace) -> dict[str, tuple[list[str], int]]:
    """Command and port by name."""
    ours = [sys.executable, "-W", "ignore", "-m", "joymigrate", "serve"]
    theirs = [str(options.vllm), "-m", "vllm.entrypoints.openai.api_server", "--model"]
    found = {}
    for place, folder in enumerate(filter(None, (options.model, options.w8a8))):
        kind = "-w8a8" if place else ""
        port = options.port + 2 * place
        found[f"ours{kind}"] = (
            [*ours, str(folder), "--device", "cpu", "--threads", "1", "--name", "m", "-q",
             "--port", str(port)], port,
        )  # fmt: skip
        found[f"vllm{kind}"] = (
            [*theirs, str(folder), "--served-model-name", "m", "--port", str(port + 1),
             "--max-model-len", "2048", "--dtype", "bfloat16"], port + 1,
        )  # fmt: skip
    return found


def wait(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until a server is ready."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"{url}: the server ended with {process.returncode}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2):
            return
        time.sleep(0.5)
    raise SystemExit(f"{url} does not answer")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=Path, required=True)
    parser.add_argument("--make", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--w8a8", type=Path)
    parser.add_argument("--port", type=int, default=18800)
    options, more = parser.parse_known_args()
    if options.make is not None:
        make(options.make)
        return 0
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "2", "OMP_NUM_THREADS": "1",
                   "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}  # fmt: skip
    environment.pop("PYTHONPATH", None)
    running: list[subprocess.Popen[bytes]] = []
    line = [sys.executable, "-m", "benchmarks.serve_load"]
    try:
        for name, (command, port) in servers(options).items():
            ours = name.startswith("ours")
            running.append(subprocess.Popen(
                command, env=dict(os.environ) if ours else environment,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            ))  # fmt: skip
            wait(f"http://127.0.0.1:{port}", running[-1])
            print(f"{name} is ready", flush=True)
            line += [f"{name}=http://127.0.0.1:{port}", "--pid", f"{name}={running[-1].pid}"]
        line += ["--model", "m", "--vocabulary", str(engine_speed.VOCABULARY), *more]
        return subprocess.run(line, check=False).returncode
    finally:
        for one in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(one.pid).children(recursive=True):
                    child.kill()
            one.kill()
            one.wait()


if __name__ == "__main__":
    sys.exit(main())
