"""The journey on three public projects: `python benchmarks/case_studies.py`.

Each is taken at the commit named here, unchanged; only its small data is made by us. It is cloned
from GitHub, or taken from a folder with checkouts: `--sources DIR` (DIR/nanoGPT, …). The table is
that of benchmarks/RESULTS.md. What a project needs besides torch and numpy is listed in `needs`;
install it first. A run that was cut short goes on where it stood, with the same `--keep DIR`.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.language import count_noun

WORDS = "the quick brown fox jumps over a lazy dog and runs away from all of them".split()  # noqa: SIM905


def characters(project: Path) -> None:
    """nanoGPT: a text of known words as train.bin, val.bin and meta.pkl."""
    chosen = random.Random(1)
    text = " ".join(chosen.choice(WORDS) for _ in range(20_000))
    letters = sorted(set(text))
    numbers = {letter: number for number, letter in enumerate(letters)}
    tokens = np.array([numbers[letter] for letter in text], dtype=np.uint16)
    folder = project / "data" / "tiny"
    folder.mkdir(parents=True)
    tokens[:70_000].tofile(folder / "train.bin")
    tokens[70_000:].tofile(folder / "val.bin")
    names = {"vocab_size": len(letters), "stoi": numbers, "itos": dict(enumerate(letters))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(names))


def pictures(project: Path) -> None:
    """improved-diffusion: sixteen pictures of waves, 32 by 32."""
    from PIL import Image

    noise = np.random.default_rng(0)
    folder = project / "pictures"
    folder.mkdir()
    y, x = np.mgrid[:32, :32]
    for number in range(16):
        red, green = 128 + 100 * np.sin(x / 3 + number), 128 + 100 * np.cos(y / 4 + number)
        blue = noise.integers(0, 255, (32, 32))
        values = np.stack([red, green, blue], -1).clip(0, 255).astype(np.uint8)
        Image.fromarray(values).save(folder / f"{number:02}.png")


def nothing(project: Path) -> None:
    """dlrm makes random data itself."""


@dataclass(frozen=True, slots=True)
class Case:
    """One project: where it comes from, how it is started, what it needs."""

    name: str
    repository: str
    commit: str
    entry: str
    prepare: Callable[[Path], None]
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


GPT = (
    "python train.py --dataset=tiny --n_layer=2 --n_head=4 --n_embd=64 --block_size=64 "
    "--batch_size=4 --gradient_accumulation_steps=2 --max_iters=4 --eval_iters=2 "
    "--eval_interval=2 --compile=False"
)

CASES = (
    Case(
        "nanoGPT",
        "karpathy/nanoGPT",
        "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        GPT,
        characters,
        options=("--baseline-entry", f"{GPT} --device=cpu"),
    ),
    Case(
        "dlrm",
        "facebookresearch/dlrm",
        "090956ee2319ddd349a42232958aefccfe3f7b0a",
        "python dlrm_s_pytorch.py --use-gpu --mini-batch-size=16 --data-size=128 --print-freq=1 "
        "--test-freq=4 --arch-embedding-size=40-30-20 --arch-sparse-feature-size=8 "
        "--arch-mlp-bot=4-16-8 --arch-mlp-top=14-8-1",
        nothing,
        ("scikit-learn", "tensorboard", "tqdm"),
    ),
    Case(
        "improved-diffusion",
        "openai/improved-diffusion",
        "1bc7bbbdc414d83d4abf2ad8cc1446dc36c4e4d5",
        "python scripts/image_train.py --data_dir pictures --image_size 32 --num_channels 32 "
        "--num_res_blocks 1 --num_heads 2 --attention_resolutions 16 --diffusion_steps 50 "
        "--batch_size 4 --microbatch 2 --lr_anneal_steps 3 --log_interval 1 --save_interval 2",
        pictures,
        ("blobfile", "mpi4py", "openmpi", "pillow", "tqdm"),
        ("--steps", "0-1"),
        {"PYTHONPATH": "."},
    ),
)


def taken(case: Case, sources: Path | None, folder: Path) -> Path:
    """The project at its commit, as a git repository of its own, with its data."""
    project = folder / case.name
    if (project / ".joymigrate").is_dir():
        return project  # of an earlier run: its journey goes on
    if sources is not None:
        leave = shutil.ignore_patterns(".git", ".joymigrate")
        shutil.copytree(sources / case.name, project, ignore=leave)
    else:
        url = f"https://github.com/{case.repository}"
        git("clone", "--quiet", "--no-checkout", url, str(project), cwd=folder)
        git("checkout", "--quiet", case.commit, cwd=project)
        shutil.rmtree(project / ".git")
    case.prepare(project)
    git("init", "--quiet", cwd=project)
    git("add", "--all", "--force", cwd=project)
    git("-c", "user.name=case", "-c", "user.email=case@example.com", "commit", "-qm", case.commit,
        cwd=project)  # fmt: skip
    return project


def git(*words: str, cwd: Path) -> None:
    """Run git."""
    subprocess.run(["git", *words], cwd=cwd, check=True)


def size_of(project: Path) -> tuple[int, int]:
    """Python files and their lines, as they were committed before the journey."""
    listed = ["git", "ls-tree", "-r", "-z", "--name-only", "HEAD"]
    names = subprocess.check_output(listed, cwd=project, text=True).split("\0")
    files = [name for name in names if name.endswith(".py")]
    contents = [
        subprocess.check_output(["git", "show", f"HEAD:{one}"], cwd=project) for one in files
    ]
    return len(files), sum(text.count(b"\n") for text in contents)


def migrated(case: Case, project: Path) -> dict[str, Any]:
    """The journey, as JSON; its progress goes to stderr."""
    command = [sys.executable, "-m", "joymigrate", "migrate", ".", "--entry", case.entry]
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **case.environment}
    done = subprocess.run(
        [*command, *case.options, "--format", "json"],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode > 1:
        raise SystemExit(f"{case.name}: migrate ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(case: Case, size: tuple[int, int], project: Path, document: Mapping[str, Any]) -> list[str]:
    """One column of the table."""
    steps = {one["name"]: one for one in document["journey"]}
    figures = {name: one["figures"] for name, one in steps.items()}
    scan, rehearse, coverage = (figures[name] for name in ("scan", "rehearse", "coverage"))
    verify, loss = figures["verify"], figures["train"]
    lacking = ", ".join(sorted({one["op"] for one in coverage.get("lacking", ())})) or "none"
    compared = verify.get("coverage") or {}
    judged = project / ".joymigrate" / "journey" / "train" / "loss.json"
    curve = json.loads(judged.read_text(encoding="utf-8"))["curve"] if judged.is_file() else {}
    apart = curve.get("values", {}).get("loss", {}).get("mean_relative")
    told = f"{loss.get('losses', [0, 0])[1]} losses, {loss.get('verdict', 'not compared')}"
    return [
        case.commit[:10],
        f"{size[0]} files, {size[1]:,} lines",
        f"{scan['sites']}: {scan['safe']} / {scan['unsafe']} / {scan['by_hand']}",
        f"{count_noun(figures['rewrite'].get('edits', 0), 'edit')} in "
        f"{count_noun(figures['rewrite'].get('files', 0), 'file')}",
        f"exit code {rehearse['exit_code']}, {count_noun(rehearse['fallbacks'], 'fallback')}, "
        f"{count_noun(rehearse['traps'], 'trap')}, peak {rehearse['peak_bytes'] / 2**20:.1f} MiB",
        f"{100 * coverage['share']['calls']:.1f} % of the calls; lacking: {lacking}"
        if "share" in coverage
        else steps["coverage"]["summary"],
        f"{verify.get('verdict', '-')}; {compared.get('compared', 0)} of "
        f"{compared.get('recorded', 0)} values",
        told + ("" if apart is None else f", {100 * apart:.3f} % apart"),
        document["verdict"],
    ]


HEADS = (
    "commit", "Python", "sites: automatic / with --unsafe / by hand", "rewrite", "rehearsal",
    "operators of the chip", "verify", "training", "journey",
)  # fmt: skip


def main() -> None:
    """Take the journeys and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--sources", type=Path, help="a folder with the checkouts")
    parser.add_argument("--keep", type=Path, help="keep the projects here, and go on")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="joymigrate-cases-"))
    folder.mkdir(parents=True, exist_ok=True)
    columns: dict[str, list[str]] = {}
    for case in CASES:
        if given.case and case.name not in given.case:
            continue
        project = taken(case, given.sources, folder)
        size = size_of(project)
        columns[case.name] = row(case, size, project, migrated(case, project))
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for number, head in enumerate(HEADS):
        print(f"| {head} | " + " | ".join(one[number] for one in columns.values()) + " |")
    if given.keep is None:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
