"""Rehearse on other releases of torch and torch_npu, one after another, and print a row for each.

    python -m benchmarks.rehearse_releases 2.5.1 2.7.1 [--opinfo] [--folder DIR] [--keep]

For each torch release: torch alone goes into a folder (without the CUDA libraries that its build
names: stand-ins answer for them, see `torch_without_cuda`), `joymigrate rehearse setup` gets the
torch_npu that fits it, and these run on the simulated chip:

- 20 training steps of a GPT, against the CPU in the same torch;
- all collectives, DDP, FSDP2 and tensor parallel on 2 ranks, against one process;
- the checks of the device (tests/run/rehearse/programs/device_checks.py);
- the functions that race, and those that do not, in `--mode async`;
- `verify` of two steps of the GPT with shared draws, recorded on the CPU in the same torch;
- with `--opinfo`, torch's own operator samples in float32.

2 GB per release on disk and a few minutes; removed afterwards unless `--keep`. Needs a network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.torch_without_cuda import add_stand_ins

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests" / "run" / "rehearse" / "programs"
SECONDS = 1500


class Release:
    """One torch release in a folder of its own, and what runs with it."""

    def __init__(self, version: str, folder: Path) -> None:
        self.version = version
        self.folder = folder
        path = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "OMP_NUM_THREADS": "1",
        }

    def install(self) -> None:
        """torch alone, and the torch_npu that fits it."""
        if not (self.folder / "torch").is_dir():
            asked = ["--no-deps", "--quiet", "--target", str(self.folder), f"torch=={self.version}"]
            subprocess.run([sys.executable, "-m", "pip", "install", *asked], check=True)
        add_stand_ins(self.folder)
        done = self.python("-m", "joymigrate", "rehearse", "setup")
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[0])

    def python(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run this Python with the release, and `more` in its environment."""
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            env=self.environment | more,
            cwd=self.folder,  # joymigrate's own folders hide nothing of the standard library there
            timeout=SECONDS,
            check=False,
        )

    def rehearse(self, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict]:
        """Rehearse a command; with the report."""
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        options = ["-q", "-o", str(report), *arguments]
        done = self.python("-m", "joymigrate", "rehearse", *options)
        return done, json.loads(report.read_text()) if report.is_file() else {}

    def gpt(self) -> str:
        """The largest difference of 20 losses."""
        program = str(PROGRAMS / "gpt.py")
        done, report = self.rehearse("--", "python", program, "npu", "20")
        plain = self.python(program, "cpu", "20")
        if done.returncode or plain.returncode:
            return failure(done if done.returncode else plain)
        ours, theirs = (json.loads(one.stdout)["losses"] for one in (done, plain))
        self.package = report["package"]["torch_npu"]
        return f"{max(abs(a - b) for a, b in zip(ours, theirs, strict=True)):.1g}"

    def collectives(self) -> str:
        """How many of the checks on two ranks agree with one process."""
        ranks = ["--devices", "2", "--", "python", "-m", "torch.distributed.run"]
        done, _ = self.rehearse(*ranks, "--nproc-per-node", "2", str(PROGRAMS / "collectives.py"))
        line = next((x for x in done.stdout.splitlines() if x.startswith('{"rank"')), None)
        if line is None:
            return failure(done)
        results = json.loads(line)["results"]
        good = [name for name, value in results.items() if value is not None and is_small(value)]
        left = [name for name in results if name not in good]
        return f"{len(good)} of {len(results)}" + (f" (not {', '.join(left)})" if left else "")

    def checks(self) -> str:
        """How many checks of the device pass."""
        quiet = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(PROGRAMS)]
        program = str(PROGRAMS / "device_checks.py")
        done, _ = self.rehearse("--", "python", "-m", "pytest", *quiet, program)
        found = re.findall(r"(\d+) (passed|failed|error)", done.stdout)
        counts = {name: int(number) for number, name in found}
        if not counts:
            return failure(done)
        for line in done.stdout.splitlines():
            if line.startswith(("FAILED", "ERROR")):
                print("   ", line[:300], file=sys.stderr)
        return f"{counts.get('passed', 0)} of {sum(counts.values())}"

    def races(self) -> str:
        """How many races are told, of the pairs of lines that are marked."""
        program = PROGRAMS / "streams.py"
        done, report = self.rehearse("--mode", "async", "--", "python", str(program))
        if not report or report["exit_code"]:
            return failure(done)
        text = program.read_text(encoding="utf-8").splitlines()
        marked = sum(line.endswith("# second") for line in text)
        return f"{len(report['races'])} of {marked}"

    def verify(self) -> str:
        """The verdict, and how many of the recorded places were compared."""
        program, shared = (
            str(PROGRAMS / "gpt.py"),
            {"JOYMIGRATE_DRAWS": "1", "JOYMIGRATE_SEED": "0"},
        )
        bundle, verdict = str(self.folder / "base.jmb"), self.folder / "verdict.json"
        record = ["record", "--force", "-o", bundle, "--steps", "0-1"]
        done = self.python(
            "-m", "joymigrate", "verify", *record, "--", "python", program, "cpu", "3", **shared
        )
        if done.returncode:
            return failure(done)
        replay = ["replay", bundle, "--to", "ascend", "--format", "json", "-o", str(verdict)]
        command = ["--rehearse", "--", "python", program, "npu", "3"]
        done = self.python("-m", "joymigrate", "verify", *replay, *command, **shared)
        if not verdict.is_file():
            return failure(done)
        found = json.loads(verdict.read_text(encoding="utf-8"))
        covered = found["coverage"]
        return f"{found['verdict']}; {covered['compared']} of {covered['recorded']}"

    def opinfo(self) -> str:
        """Operators whose samples agree with the CPU."""
        done, _ = self.rehearse(
            "--", "python", str(ROOT / "benchmarks/rehearse_opinfo.py"), "float32"
        )
        found = re.search(r"(\d+ of \d+) operators agree.*; (.*)", done.stdout)
        if not found:
            return failure(done)
        print(done.stdout, file=sys.stderr)
        return f"{found[1]}; {found[2]}"


def is_small(value: object) -> bool:
    """Whether a check's result is a difference within rounding."""
    return isinstance(value, (int, float)) and value <= 1e-6


def failure(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of what went wrong."""
    lines = (done.stderr.strip() or done.stdout.strip() or f"exit {done.returncode}").splitlines()
    print("\n".join(lines[-30:]), file=sys.stderr)
    return f"fails: {lines[-1][:200]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="+", metavar="TORCH")
    parser.add_argument("--opinfo", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the torch releases go")
    parser.add_argument("--keep", action="store_true", help="do not remove them")
    options = parser.parse_args()
    parts = [
        "gpt",
        "collectives",
        "checks",
        "races",
        "verify",
        *(["opinfo"] if options.opinfo else []),
    ]
    print("| torch | torch_npu | " + " | ".join(parts) + " |\n|" + "---|" * (len(parts) + 2))
    worst = 0
    for version in options.versions:
        base = options.folder or Path(tempfile.mkdtemp(prefix="joymigrate-torch-"))
        folder = (base / version).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            release = Release(version, folder)
            release.install()
            found = [getattr(release, part)() for part in parts]
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"| {version} | | {error} |", flush=True)
            worst = 1
            continue
        finally:
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)
        worst |= any(text.startswith("fails") for text in found)
        package = getattr(release, "package", "")
        print(f"| {version} | {package} | {' | '.join(found)} |", flush=True)
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
