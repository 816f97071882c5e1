"""vLLM with its plug-in for the chip, whole, in a rehearsal; transformers on the CPU beside it.

    python -m benchmarks.vllm_ascend CHECKOUT WORK [--tests FOLDER …] [--seconds N]

CHECKOUT is a git checkout of vllm-project/vllm-ascend at 182b75ea84; WORK is a folder for the
environment (about 1.5 GB), which is kept. vLLM is the release that the plug-in's Dockerfile names,
without its compiled parts; both run on torch 2.13, the plug-in pins 2.10. A Llama of two layers
with random weights answers two prompts greedily, and transformers answers them on the CPU. With
--tests, the plug-in's own tests in those folders run in a rehearsal as well (its folders `a2` want
a chip).
Nothing here was seen on a chip.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ET
import zipfile
from collections import Counter
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks.board.packages import without_compiled

ROOT = Path(__file__).parents[1]
VLLM = "0.27.1"  # ARG VLLM_TAG of the plug-in's Dockerfile
# What needs CUDA, or another torch, and is not imported on other devices.
LEFT_OUT = """torch torchaudio torchvision torchcodec pynvvideocodec flashinfer-python tilelang
    apache-tvm-ffi nvidia-cudnn-frontend nvtx fastsafetensors nvidia-cutlass-dsl quack-kernels
    tokenspeed-mla humming-kernels compressed-tensors xgrammar fastapi"""
BY_THEMSELVES = ("compressed-tensors==0.17.0", "xgrammar", "apache-tvm-ffi", "loguru")
SERVER = ("fastapi", "uvloop", "uvicorn", "httptools", "python-multipart", "email-validator")
BESIDE = (*SERVER, "pytest", "pytest-mock", "pytest-asyncio")
ENTRY_POINTS = """[vllm.platform_plugins]
ascend = vllm_ascend:register
[vllm.general_plugins]
ascend_kv_connector = vllm_ascend:register_connector
ascend_model_loader = vllm_ascend:register_model_loader
ascend_model = vllm_ascend:register_model
"""
PROMPTS = ["the cat sat", "a dog"]
ANSWER = """
import json
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(model="model", dtype="float16", enforce_eager=True, max_model_len=128,
              gpu_memory_utilization=0.1, num_gpu_blocks_override=64, max_num_seqs=4)
    asked = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    made = llm.generate({prompts}, asked)
    print("ANSWERS", json.dumps([list(one.outputs[0].token_ids) for one in made]))
"""
EXPECTED = """
from joymigrate.chips import hide_driverless
hide_driverless()
import json, torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
model = LlamaForCausalLM.from_pretrained("model", dtype=torch.float32)
words = PreTrainedTokenizerFast.from_pretrained("model")
made = []
for prompt in {prompts}:
    ids = torch.tensor([words(prompt)["input_ids"]])
    said = model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None)
    made.append(said[0, ids.shape[1]:].tolist())
print("ANSWERS", json.dumps(made))
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_ascend", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--tests", nargs="*", default=[], help="folders below tests/ut")
    parser.add_argument("--seconds", type=float, default=3600, help="limit of the tests")
    given = parser.parse_args()
    work, checkout = given.work.resolve(), given.checkout.resolve()
    if not (work / "ready").is_file():
        prepare(work, checkout)
        (work / "ready").write_text(VLLM, encoding="ascii")
    same = answers(work, checkout)
    if given.tests:
        tests(work, checkout, given.tests, given.seconds)
    return 0 if same else 1


def prepare(work: Path, checkout: Path) -> None:
    """The environment: vLLM's Python, what it imports, the plug-in's metadata, a small model."""
    work.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", str(work / "venv")], check=True)
    packages = next((work / "venv").glob("lib/python*/site-packages"))
    # This environment's packages, with torch and torch_npu, come after the new one's.
    (packages / "zz_outer.pth").write_text(sysconfig.get_paths()["purelib"], encoding="utf-8")
    wheel = download(work, f"vllm=={VLLM}")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith(".so")]
        archive.extractall(work / "vllm", names)
    wheel.unlink()
    metadata = (work / "vllm" / f"vllm-{VLLM}.dist-info" / "METADATA").read_text(encoding="utf-8")
    listed = HeaderParser().parsestr(metadata).get_all("Requires-Dist") or []
    (work / "torch.txt").write_text("torch==2.13.0\ntorch-npu==2.13.0\n", encoding="ascii")
    pip(work, "install", "-c", str(work / "torch.txt"), *BESIDE, *filter(wanted, listed))
    pip(work, "install", "--no-deps", *BY_THEMSELVES)
    pip(work, "install", "--no-deps", "--target", str(work / "pictures"), "torchvision==0.28.*")
    without_compiled(work / "pictures" / "torchvision")
    named = work / "plugin" / "vllm_ascend-0.0.0.dist-info"
    named.mkdir(parents=True)
    (named / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.0.0\n", encoding="ascii"
    )
    (named / "entry_points.txt").write_text(ENTRY_POINTS, encoding="ascii")
    built = checkout / "vllm_ascend" / "_build_info.py"  # its setup.py writes the same
    built.write_text("__device_type__ = 'A2'\n", encoding="ascii")
    smi = work / "bin" / "npu-smi"  # its tests ask whether there is one
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\nexit 0\n", encoding="ascii")
    smi.chmod(0o755)
    maker = (ROOT / "benchmarks/board/data/tiny_llama.py").read_text(encoding="utf-8")
    wide = maker.replace("hidden_size=32", "hidden_size=256")  # heads of 64, as the chip wants
    (work / "make.py").write_text(wide, encoding="utf-8")
    run(work, [sys.executable, "make.py", "model", "rows", "text"])


def wanted(text: str) -> bool:
    """Whether one of vLLM's requirements is installed."""
    one = Requirement(text)
    here = one.marker is None or one.marker.evaluate({"extra": ""})
    return here and one.name.lower().replace("_", "-") not in LEFT_OUT.split()


def download(work: Path, requirement: str) -> Path:
    """One wheel of the index."""
    pip(work, "download", "--no-deps", "--only-binary", ":all:", "-d", str(work), requirement)
    return next(work.glob("*.whl"))


def pip(work: Path, *words: str) -> None:
    subprocess.run(
        [str(work / "venv/bin/python"), "-m", "pip", "-q", "--disable-pip-version-check", *words],
        check=True,
    )


def run(work: Path, command: Sequence[str], *, checkout: Path | None = None) -> str:
    """What a command prints on stdout; its stderr is kept in `last.log`."""
    path = [str(ROOT)]
    if checkout is not None:
        path = [
            *(str(work / name) for name in ("vllm", "plugin", "pictures")),
            str(checkout),
            *path,
        ]
    environment = {
        **os.environ,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "PYTHONPATH": ":".join(path),
        "PATH": f"{work / 'bin'}:{work / 'venv/bin'}:{os.environ['PATH']}",
    }
    with (work / "last.log").open("w", encoding="utf-8") as log:
        done = subprocess.run(
            command, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
    if done.returncode:
        tail = (work / "last.log").read_text(encoding="utf-8").splitlines()[-5:]
        print(f"exit code {done.returncode}:", *tail, sep="\n  ", file=sys.stderr)
    return done.stdout


def answers(work: Path, checkout: Path) -> bool:
    """The tokens of both, and what the rehearsal saw."""
    (work / "answer.py").write_text(ANSWER.format(prompts=PROMPTS), encoding="utf-8")
    (work / "expected.py").write_text(EXPECTED.format(prompts=PROMPTS), encoding="utf-8")
    python = str(work / "venv/bin/python")
    rehearsed = run(work, [*rehearsal(work, "answer.json"), python, "answer.py"], checkout=checkout)
    plain = run(work, [python, "expected.py"])
    chip, cpu = (found(text) for text in (rehearsed, plain))
    print(f"the plug-in on the simulated chip: {chip}\ntransformers on the CPU:           {cpu}")
    if (work / "answer.json").is_file():
        seen = json.loads((work / "answer.json").read_text(encoding="utf-8"))
        kernels = ", ".join(row["kernel"].rpartition(".")[2] for row in seen["triton_kernels"])
        print(f"{seen['calls']} calls of {seen['operators']} operators; Triton kernels: {kernels}")
        print("refusals:", len(seen["refusals"]), " without simulation:", len(seen["unsimulated"]))
    print("the same tokens" if chip and chip == cpu else "not the same")
    return bool(chip) and chip == cpu


def rehearsal(work: Path, report: str) -> list[str]:
    python = str(work / "venv/bin/python")
    return [python, "-m", "joymigrate", "rehearse", "-o", str(work / report), "--"]


def found(text: str) -> list[list[int]]:
    """The tokens in what a program printed."""
    lines = [line for line in text.splitlines() if line.startswith("ANSWERS ")]
    made: list[list[int]] = json.loads(lines[-1].removeprefix("ANSWERS ")) if lines else []
    return made


def tests(work: Path, checkout: Path, folders: Sequence[str], seconds: float) -> None:
    """The plug-in's own tests, by what became of them and why."""
    wanted = [str(checkout / "tests/ut" / folder) for folder in folders]
    result = work / "tests.xml"
    result.unlink(missing_ok=True)
    asked = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "--continue-on-collection-errors"]
    limit = ["timeout", "--signal=INT", str(seconds)]
    pytest = [
        str(work / "venv/bin/python"),
        "-m",
        "pytest",
        *asked,
        f"--junitxml={result}",
        *wanted,
    ]
    run(work, [*limit, *rehearsal(work, "tests.json"), *pytest], checkout=checkout)
    ends: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in ET.parse(result).iter("testcase") if result.is_file() else ():
        bad = next(
            (case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None
        )
        ends[
            "failed"
            if bad is not None
            else "skipped"
            if case.find("skipped") is not None
            else "passed"
        ] += 1
        if bad is not None:
            reasons[" ".join((bad.get("message") or "").split())[:110]] += 1
    print(", ".join(f"{count} {end}" for end, count in ends.most_common()) or "no test ran")
    for reason, count in reasons.most_common(12):
        print(f"  {count:4} {reason}")


if __name__ == "__main__":
    raise SystemExit(main())
