"""`make demo`: the way of two programs, shown in figures that are read from the results.

A GPT goes step by step: scanned, rewritten, taken back byte for byte, copied so that it runs on
both, run on two simulated cards. Fine-tuning of a language model then takes the whole journey in
one command, until the model is served. What only a card of NVIDIA answers in it stays as it is.

Everything lies in `demo-out/` afterwards: programs, diff, reports, and what every step printed. A
step that fails is shown with its last lines, and the demo exits with 1.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
OUT = Path("demo-out")
MARK = OUT / ".made-by-demo"
PROJECT = OUT / "gpt"
AGNOSTIC = OUT / "agnostic"
TUNED = OUT / "finetune_qwen"
JOURNEY = TUNED / ".joymigrate/journey"
REPORT = OUT / "report.html"
ENTRY = "python finetune.py --tiny --steps 6 --batch-size 4"
ORIGINAL_LOSSES = PROJECT / "out/cpu/metrics.jsonl"
LOGS = OUT / "logs"
TRAIN = ("train.py", "--steps", "10", "--batch-size", "8", "--layers", "2", "--width", "64",
         "--log-every", "1", "--eval-sums", "4")  # fmt: skip
SHOWN_LINES = 6


class Failed(Exception):
    """A step did not do what it should; the text says what happened."""


@dataclass
class Step:
    """One line of the summary: `run` does it and returns the fact to show."""

    name: str
    run: Callable[[], str]


def call(log: str, *command: str, cwd: Path = PROJECT, ok: tuple[int, ...] = (0,)) -> bytes:
    """Run a command, keep what it printed in `logs/`, return its stdout."""
    done = subprocess.run(command, cwd=cwd, capture_output=True)
    (LOGS / f"{log}.txt").write_bytes(
        b"$ " + " ".join(command).encode() + b"\n" + done.stdout + done.stderr
    )
    if done.returncode not in ok:
        lines = (done.stdout + done.stderr).decode("utf-8", "replace").strip().splitlines()
        raise Failed("\n".join([f"exit code {done.returncode}", *lines[-SHOWN_LINES:]]))
    return done.stdout


def joymigrate(log: str, *arguments: str, cwd: Path = PROJECT, ok: tuple[int, ...] = (0,)) -> bytes:
    """Run joymigrate in a program's folder."""
    return call(log, sys.executable, "-m", "joymigrate", *arguments, cwd=cwd, ok=ok)


def git(*arguments: str, cwd: Path = PROJECT) -> bytes:
    """Run git in a program's folder, under a name of the demo's own."""
    identity = ("-c", "user.name=demo", "-c", "user.email=demo@example.invalid")
    return call("git-" + arguments[0], "git", *identity, *arguments, cwd=cwd)


def cloned(name: str, target: Path) -> list[str]:
    """Copy an example into a git repository of its own; returns its files."""
    left = shutil.ignore_patterns("out", "__pycache__", ".joymigrate")
    shutil.copytree(HERE / name, target, ignore=left)
    (target / ".gitignore").write_text("out/\n")
    git("init", "-q", cwd=target)
    git("add", ".", cwd=target)
    git("commit", "-q", "-m", "The program as it runs on NVIDIA GPUs", cwd=target)
    return git("ls-files", cwd=target).decode().split()


def stations() -> dict[str, dict]:
    """The steps of the journey by name, as it wrote them."""
    document = json.loads((JOURNEY / "journey.json").read_text())
    return {one["name"]: one for one in document["journey"]}


def losses(path: Path) -> list[float]:
    """The losses that the program logged, by step."""
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]


def load(name: str) -> dict:
    """One of the result files."""
    return json.loads((OUT / name).read_text())


def count(number: int, noun: str) -> str:
    """`1 site`, `2 sites`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def changed_lines(patch: bytes) -> tuple[int, int, int]:
    """Files, added and removed lines of a diff."""
    lines = patch.split(b"\n")
    return (
        sum(line.startswith(b"diff --git ") for line in lines),
        sum(line.startswith(b"+") and not line.startswith(b"+++") for line in lines),
        sum(line.startswith(b"-") and not line.startswith(b"---") for line in lines),
    )


def copy() -> str:
    if OUT.exists() and not MARK.exists():
        raise Failed(f"{OUT}/ exists and was not made by the demo; move it away")
    shutil.rmtree(OUT, ignore_errors=True)
    LOGS.mkdir(parents=True)
    MARK.touch()
    files = cloned("gpt", PROJECT)
    lines = sum(len((PROJECT / name).read_bytes().splitlines()) for name in files)
    return f"{count(len(files), 'file')}, {lines} lines in a fresh git repository"


def original() -> str:
    call("original", sys.executable, *TRAIN, "--device", "cpu", "--out", "out/cpu")
    found = losses(ORIGINAL_LOSSES)
    return f"{count(len(found), 'step')}, loss {found[0]:.4f} to {found[-1]:.4f}"


def scan() -> str:
    output = joymigrate("scan", "scan", ".", "--format", "json", "--exit-zero")
    (OUT / "scan.json").write_bytes(output)
    page = str((OUT / "scan.html").resolve())
    joymigrate("scan-page", "scan", ".", "--format", "html", "-o", page, "--exit-zero")
    summary = load("scan.json")["summary"]
    sites = summary["safe"] + summary["unsafe"] + summary["report"]
    return (
        f"{count(sites, 'site')}: {summary['safe']} automatic, {summary['unsafe']} with --unsafe, "
        f"{summary['report']} by hand"
    )


def diff() -> str:
    patch = joymigrate("diff", "rewrite", ".", "--diff", ok=(1,))
    (OUT / "migration.patch").write_bytes(patch)
    git("apply", "--check", "../migration.patch")
    if git("status", "--porcelain"):
        raise Failed("--diff changed the tree")
    files, added, removed = changed_lines(patch)
    return f"{count(files, 'file')}, +{added} -{removed} lines; git apply accepts it"


def rewrite() -> str:
    output = joymigrate("rewrite", "rewrite", ".", "--format", "json")
    (OUT / "rewrite.json").write_bytes(output)
    result = load("rewrite.json")
    edits, files = result["summary"]["edits"], result["summary"]["files"]
    return f"{count(edits, 'site')} in {count(files, 'file')}, step {result['step']}"


def rollback() -> str:
    joymigrate("rollback", "rollback")
    left = git("status", "--porcelain").decode()
    if left:
        raise Failed(f"the tree differs from the commit:\n{left}")
    return "every byte as committed"


def both() -> str:
    target = ("-o", "../agnostic", "--style", "agnostic")
    output = joymigrate("agnostic", "rewrite", ".", *target, "--format", "json")
    (OUT / "agnostic.json").write_bytes(output)
    edits = load("agnostic.json")["summary"]["edits"]
    # Without an accelerator the same command takes the CPU: no --device here.
    call("agnostic-run", sys.executable, *TRAIN, "--out", "out/cpu", cwd=AGNOSTIC)
    ours, theirs = losses(AGNOSTIC / "out/cpu/metrics.jsonl"), losses(ORIGINAL_LOSSES)
    if ours != theirs:
        raise Failed(f"the losses differ: {ours} and {theirs}")
    return f"{count(edits, 'site')} in a copy; on the CPU every loss equals the original's"


def two_cards() -> str:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    program = (sys.executable, *launcher, *TRAIN, "--no-amp", "--out", "out/npu")
    report = str((OUT / "rehearsal.json").resolve())
    options = ("--devices", "2", "--format", "json", "-o", report)
    joymigrate("rehearsal", "rehearse", *options, "--", *program, cwd=AGNOSTIC)
    found = load("rehearsal.json")
    ours = losses(AGNOSTIC / "out/npu/metrics.jsonl")
    cards = " and ".join(found["peak_memory_bytes"])
    peak = max(found["peak_memory_bytes"].values()) / 2**20
    return (
        f"torchrun over hccl on {cards}: loss {ours[0]:.4f} to {ours[-1]:.4f}, "
        f"peak {peak:.1f} MiB\n"
        f"torch_npu {found['package']['torch_npu']} on a simulated chip"
    )


def migrate(log: str, ok: tuple[int, ...]) -> None:
    """`joymigrate migrate`, with its page in the demo's folder."""
    page = str(REPORT.resolve())
    # On the chip this program computes in float32: it asks for an NVIDIA card's capability. By
    # stand-ins it would compute in bfloat16, as on the card; its own CPU path is the baseline.
    original = ["--baseline-entry", f"{ENTRY} --device cpu"]
    joymigrate(log, "migrate", ".", "--entry", ENTRY, *original, "--report", page, cwd=TUNED, ok=ok)


def journey() -> str:
    files = cloned("finetune_qwen", TUNED)
    migrate("migrate", ok=(0,))
    found = stations()
    missing = [name for name, one in found.items() if one["status"] != "done"]
    if missing:
        raise Failed(f"not done: {', '.join(missing)}")
    names = " → ".join(found)
    seconds = sum(one["seconds"] for one in found.values())
    return f"{count(len(files), 'file')}, {count(len(found), 'step')} in {seconds:.0f} s\n{names}"


def rows() -> list[tuple[str, str]]:
    """The summary: every figure out of a file that a step wrote."""
    scan, edits = load("scan.json")["summary"], load("agnostic.json")["summary"]["edits"]
    sites = scan["safe"] + scan["unsafe"] + scan["report"]
    original = losses(ORIGINAL_LOSSES)
    equal = losses(AGNOSTIC / "out/cpu/metrics.jsonl") == original
    found = stations()
    summary = {name: one["summary"] for name, one in found.items()}
    verdict = json.loads((JOURNEY / "verify/verdict.json").read_text())
    answer = json.loads((JOURNEY / "serve/answer.json").read_text())
    return [
        ("sites of the GPT", f"{sites}, of which {scan['safe']} rewritten without a question"),
        (
            "runs on both",
            f"{edits} edits; CPU losses {'equal' if equal else 'DIFFER'} step by step",
        ),
        ("rewrite", summary["rewrite"]),
        ("on the simulated chip", summary["rehearse"]),
        ("operators", summary["coverage"]),
        ("advice", summary["advice"]),
        ("precision", f"{verdict['verdict']}: {summary['verify']}"),
        ("training", summary["train"]),
        ("serving", f"{summary['serve']} ({answer['usage']['completion_tokens']} counted)"),
    ]


STEPS = [
    Step("copy a GPT", copy),
    Step("run it on the CPU", original),
    Step("scan", scan),
    Step("diff", diff),
    Step("rewrite", rewrite),
    Step("roll back", rollback),
    Step("a copy for both", both),
    Step("two simulated cards", two_cards),
    Step("migrate another one", journey),
]
REPORTS = {
    "the diff": OUT / "migration.patch",
    "findings": OUT / "scan.html",
    "the copy for both": AGNOSTIC,
    "the migrated project": TUNED,
    "what every step printed": LOGS,
}


def main() -> int:
    """Run the steps, show one line each, then where everything lies."""
    # With torch_npu installed and no CANN, a plain `import torch` fails otherwise.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the demo compares runs on the CPU
    for name in [name for name in os.environ if name.startswith("JOYMIGRATE_")]:
        del os.environ[name]
    print("joymigrate demo: two CUDA programs move to Ascend, on a simulated chip\n")
    failed = []
    started = time.perf_counter()
    for step in STEPS:
        began = time.perf_counter()
        try:
            mark, fact = "ok  ", step.run()
        except (Failed, OSError, ValueError, KeyError, StopIteration) as error:
            mark, fact = "FAIL", str(error) or type(error).__name__
            failed.append(step.name)
        seconds = time.perf_counter() - began
        first, *rest = fact.splitlines()
        print(f"  {mark}  {step.name:<22} {first}  ({seconds:.1f} s)", flush=True)
        for line in rest:
            print(f"        {'':<22} {line}", flush=True)
    print()
    try:
        for name, fact in rows():
            print(f"  {name:<24} {fact}")
        print()
    except (OSError, ValueError, KeyError) as error:
        print(f"  no summary: {type(error).__name__}: {error}\n")
        failed.append("summary")
    for name, path in REPORTS.items():
        if path.exists():
            print(f"  {name:<24} {path}")
    if REPORT.exists():
        print(f"\n  The report: {REPORT.resolve()}")
    took = time.perf_counter() - started
    if failed:
        print(f"\n{len(failed)} of {len(STEPS)} steps failed in {took:.0f} s: {', '.join(failed)}")
        return 1
    print(f"\nAll {len(STEPS)} steps passed in {took:.0f} s.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
