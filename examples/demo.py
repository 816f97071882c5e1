"""`make demo`: migrate the example and show what came of it, in figures read from the results.

Everything lies in `demo-out/` afterwards: the migrated program, the diff, the reports, and what
every step printed. A step that fails is shown with its last lines, and the demo exits with 1.
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
ORIGINAL_LOSSES = PROJECT / "out/cpu/metrics.jsonl"
LOGS = OUT / "logs"
TRAIN = ("train.py", "--steps", "12", "--batch-size", "8", "--log-every", "1", "--eval-sums", "4")
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


def joymigrate(log: str, *arguments: str, ok: tuple[int, ...] = (0,)) -> bytes:
    """Run joymigrate in the example's folder."""
    return call(log, sys.executable, "-m", "joymigrate", *arguments, ok=ok)


def git(*arguments: str) -> bytes:
    """Run git in the example's folder, under a name of the demo's own."""
    identity = ("-c", "user.name=demo", "-c", "user.email=demo@example.invalid")
    return call("git-" + arguments[0], "git", *identity, *arguments)


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
    shutil.copytree(HERE / "gpt", PROJECT, ignore=shutil.ignore_patterns("out", "__pycache__"))
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "The program as it runs on NVIDIA GPUs")
    files = git("ls-files").decode().split()
    lines = sum(len((PROJECT / name).read_bytes().splitlines()) for name in files)
    return f"{count(len(files), 'file')}, {lines} lines in a fresh git repository"


def original() -> str:
    call("original", sys.executable, *TRAIN, "--device", "cpu", "--out", "out/cpu")
    found = losses(ORIGINAL_LOSSES)
    return f"{count(len(found), 'step')}, loss {found[0]:.4f} to {found[-1]:.4f}"


def scan() -> str:
    output = joymigrate("scan", "scan", ".", "--format", "json", "--exit-zero")
    (OUT / "scan.json").write_bytes(output)
    report = str((OUT / "report.html").resolve())
    joymigrate("report", "scan", ".", "--format", "html", "-o", report, "--exit-zero")
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


def again() -> str:
    joymigrate("rewrite-again", "rewrite", ".", "-q")
    promised = changed_lines((OUT / "migration.patch").read_bytes())
    written = changed_lines(git("diff"))
    if promised != written:
        raise Failed(f"the diff promised {promised}, the rewrite wrote {written}")
    steps = json.loads(joymigrate("status", "status", "--format", "json"))["steps"]
    return f"as the diff promised; {count(len(steps), 'step')} in the ledger"


def rescan() -> str:
    output = joymigrate("scan-again", "scan", ".", "--format", "json", "--exit-zero")
    (OUT / "scan-after.json").write_bytes(output)
    document = load("scan-after.json")
    summary = document["summary"]
    if summary["safe"]:
        raise Failed(f"{count(summary['safe'], 'automatic site')} left after the rewrite")
    explained = sum(1 for f in document["findings"] if f["reason"] or f["message"])
    return f"{count(len(document['findings']), 'site')} left, {explained} with the reason"


def rehearse() -> str:
    program = (sys.executable, *TRAIN, "--no-amp", "--out", "out/npu")
    found = rehearsal("rehearsal", "--", *program)
    ours, theirs = losses(PROJECT / "out/npu/metrics.jsonl"), losses(ORIGINAL_LOSSES)
    gap = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    device = next(iter(found["peak_memory_bytes"]))
    peak = found["peak_memory_bytes"][device] / 2**20
    return (
        f"{count(len(ours), 'step')} on {device}, loss {ours[0]:.4f} to {ours[-1]:.4f}, "
        f"within {gap:.1e} of the original\n"
        f"{count(len(found['fallbacks']), 'operator')} fell back to the CPU, "
        f"peak {peak:.1f} MiB, torch_npu {found['package']['torch_npu']}; simulated, no chip"
    )


def two_cards() -> str:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    program = (sys.executable, *launcher, *TRAIN, "--no-amp", "--out", "out/npu2")
    found = rehearsal("rehearsal-2", "--devices", "2", "--", *program)
    ours = losses(PROJECT / "out/npu2/metrics.jsonl")
    cards = " and ".join(found["peak_memory_bytes"])
    return f"torchrun over hccl on {cards}: loss {ours[0]:.4f} to {ours[-1]:.4f}; simulated"


def rehearsal(name: str, *arguments: str) -> dict:
    """Run a program on the simulated chip and return what the rehearsal saw."""
    report = str((OUT / f"{name}.json").resolve())
    joymigrate(name, "rehearse", "--format", "json", "-o", report, *arguments)
    found = load(f"{name}.json")
    if found["exit_code"] != 0:
        raise Failed(f"the program ended with {found['exit_code']}")
    return found


STEPS = [
    Step("copy the example", copy),
    Step("run it on the CPU", original),
    Step("scan", scan),
    Step("diff", diff),
    Step("rewrite", rewrite),
    Step("roll back", rollback),
    Step("a copy for both", both),
    Step("rewrite again", again),
    Step("scan again", rescan),
    Step("rehearse the result", rehearse),
    Step("rehearse on two cards", two_cards),
]
REPORTS = {
    "report for people": OUT / "report.html",
    "the diff": OUT / "migration.patch",
    "the migrated program": PROJECT,
    "the copy for both": AGNOSTIC,
    "what the rehearsal saw": OUT / "rehearsal.json",
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
    print("joymigrate demo: a CUDA training program moves to Ascend\n")
    failed = []
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
    for name, path in REPORTS.items():
        if path.exists():
            print(f"  {name:<24} {path}")
    if failed:
        print(f"\n{count(len(failed), 'step')} of {len(STEPS)} failed: {', '.join(failed)}")
        return 1
    print(f"\nAll {len(STEPS)} steps passed.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
