"""msprobe and verify on the same planted faults, in one run: who sees them, who names the place.

    PYTHONPATH=. ENV/bin/python benchmarks/verify_msprobe.py --log FILE [--faults N] [--minutes M]

ENV is an environment with torch, `mindstudio-probe` and joymigrate's `verify` extra. Half of the
faults are inside of modules (tests/verify/faults.py), half outside (whole_faults.py and the two
files beside it), float32. Targets of both differ from the baseline by one unit in the last place of
products and reductions, clean ones too.

msprobe runs as its guide says: level "mix", task "statistics", three steps, `msprobe compare` on
the two dumps. It sees a fault if `Result` of any row is "error" or "warning" and the clean noisy
run of that program has no such row of the same name. It names the place if the first of these rows
lies in the module (for faults inside; by `construct.json`), or in no module (for faults outside):
more than a user could tell by it. `verify` is counted as in verify_whole.py.

What stands in the log isn't run again: the same command goes on where the last one ended (with
--minutes, of its own accord). Recordings of both lie in the folder FILE.room until all is done.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import re
import runpy
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
STEPS = 3
ENVIRONMENT = {"SEED": "0", "MODE": "float32", "DTYPE": "float32", "OUT": ""}


def dumped(program: Path, folder: Path | None, noise: bool, seconds: Path) -> None:
    """Run a program in this process, under the debugger where there is a folder."""
    os.environ.update(ENVIRONMENT)
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if noise:
        quiet_noise(torch).__enter__()
    if folder is not None:
        watch(folder, torch, register_optimizer_step_post_hook)
    begin = time.process_time()
    runpy.run_path(str(program), run_name="__main__")
    seconds.write_text(str(time.process_time() - begin))


def quiet_noise(torch: Any) -> Any:
    """The same noise by torch's own methods: the debugger records what it has put in their place,
    and would count the noise as the program's."""
    from joymigrate.verify.noise import Noise

    multiply, add, finfo = torch.Tensor.mul_, torch.Tensor.add_, torch.finfo

    class QuietNoise(Noise):
        def move(self, tensor: Any) -> None:
            floating = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            if not floating or tensor.dtype == torch.float64 or not tensor.numel():
                return
            pairs = zip(tensor.stride(), tensor.shape, strict=True)
            if any(s == 0 and n > 1 for s, n in pairs):
                return
            drawn = self.generator.integers(-1, 2, tuple(tensor.shape))
            step = torch.tensor(drawn, dtype=tensor.dtype)
            multiply(tensor, add(multiply(step, finfo(tensor.dtype).eps), 1))

    return QuietNoise(1.0)


def watch(folder: Path, torch: Any, after_step: Callable[[Any], Any]) -> None:
    """The four lines that its guide asks for, put where a user would write them."""
    from msprobe.pytorch import PrecisionDebugger

    settings = folder / "config.json"
    text = {"task": "statistics", "dump_path": str(folder), "level": "mix", "rank": [], "step": []}
    text["statistics"] = {"scope": [], "list": [], "data_mode": ["all"]}
    settings.write_text(json.dumps(text))
    debugger = PrecisionDebugger(config_path=str(settings))
    state: dict[str, Any] = {"models": None, "step": 0}
    real = torch.nn.Module.__call__

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if state["models"] is None:
            held = sys._getframe(1).f_globals.values()
            found = {id(m): m for m in held if isinstance(m, torch.nn.Module)} or {0: module}
            state["models"] = list(found.values())
            debugger.start(model=state["models"])
        return real(module, *args, **kwargs)

    def stepped(*_: Any) -> None:
        if state["models"] is None or state["step"] >= STEPS:
            return
        debugger.stop()
        debugger.step()
        state["step"] += 1
        if state["step"] < STEPS:
            debugger.start(model=state["models"])

    torch.nn.Module.__call__ = call
    after_step(stepped)


def compared(target: Path, golden: Path, out: Path) -> None:
    """`msprobe compare` of every step."""
    from msprobe.msprobe import main as msprobe

    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for step in range(STEPS):
        there = [str(side / f"step{step}") for side in (target, golden)]
        if not all(Path(name).is_dir() for name in there):
            continue
        sys.argv = ["msprobe", "compare", "-tp", there[0], "-gp", there[1]]
        sys.argv += ["-o", str(out / str(step))]
        msprobe()


def apart(work: Callable[..., None], *given: Any) -> bool:
    """Do it in a child that has everything imported already."""
    child = multiprocessing.get_context("fork").Process(target=work, args=given)
    child.start()
    child.join(300)
    if child.is_alive():
        child.kill()
    return child.exitcode == 0


def flagged(out: Path) -> list[tuple[int, str]]:
    """(step, name) of rows that are no pass, in the order of the tables."""
    found = []
    for step in range(STEPS):
        for table in sorted((out / str(step)).rglob("compare_result*.csv")):
            with table.open(encoding="utf-8-sig") as file:
                for row in csv.DictReader(file):
                    names = [row.get("NPU Name"), row.get("Target Name"), row.get("Bench Name")]
                    name = next((n for n in names if n and n != "N/A"), "")
                    if str(row.get("Result", "")).strip().lower() in ("error", "warning"):
                        found.append((step, name))
    return found


def size(folder: Path) -> int:
    """Bytes of everything below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def chosen(count: int) -> list[Any]:
    """Half of them inside of modules, half outside, spread over the catalogues."""
    from tests.verify.faults import FAULTS
    from tests.verify.hunted_faults import HUNTED_FAULTS
    from tests.verify.more_faults import MORE_FAULTS
    from tests.verify.whole_faults import WHOLE_FAULTS

    outside = [
        fault
        for fault in (*WHOLE_FAULTS, *MORE_FAULTS, *HUNTED_FAULTS)
        if fault.program in ("lm", "cnn", "ctr", "scaler", "queue", "series", "graph")
    ]
    made: list[Any] = []
    for faults in (FAULTS, outside):
        stride = len(faults) / (count / 2)
        made += [faults[int(n * stride)] for n in range(count // 2)]
    return made


def ours(found: Any, fault: Any) -> tuple[bool, bool]:
    """(seen, named) of a verdict."""
    first = found.first_divergence
    if found.verdict.value != "fail" or first is None:
        return False, False
    if hasattr(fault, "module"):
        return True, (first.module, first.phase) == (fault.module, fault.phase)
    phase = {"S5F": "file", "S1": first.phase or "input state"}.get(first.stage, first.phase)
    word = {"optimiser": "update"}.get(phase or "", phase or "")
    return True, any(part in fault.where.split() for part in word.split())


def theirs(rows: list[tuple[int, str]], fault: Any, dump: Path) -> tuple[bool, bool, str]:
    """(seen, named, module) of its rows: an operator's module stands in `construct.json`."""
    if not rows:
        return False, False, ""
    step, name = rows[0]
    call = re.sub(r"\.(input|output|parameters|parameters_grad|kwargs)\b.*", "", name)
    parents: dict[str, Any] = {}
    for file in (dump / f"step{step}").rglob("construct.json"):
        parents = json.loads(file.read_text())
    above = parents.get(call)
    above = above[0] if isinstance(above, list) else above
    place = call if call.startswith("Module.") else str(above or "")
    if hasattr(fault, "module"):
        inside = f".{fault.module.split(':')[-1]}." in place
        return True, inside and (".backward" in call) == (fault.phase == "backward"), place
    outside = not place.startswith("Module.") or "parameters_grad" in name
    return True, outside, place


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--faults", type=int, default=30)
    options.add_argument("--minutes", type=float, default=1e9, help="begin no fault after so many")
    options.add_argument("--log", required=True, help="a file for one JSON line per run, added to")
    asked = options.parse_args()
    import msprobe.pytorch  # noqa: F401  before the first fork
    import pandas  # noqa: F401
    import torch

    torch.set_num_threads(1)
    begin, log = time.monotonic(), Path(asked.log)
    log.touch()
    bench = Bench(log)
    faults = sorted(enumerate(chosen(asked.faults)), key=lambda pair: source_of(pair[1]).stem)
    waiting = [(n, f) for n, f in faults if (source_of(f).stem, f.name) not in bench.done]
    for number, fault in waiting:
        if time.monotonic() - begin > asked.minutes * 60:
            break
        bench.fault(number, fault)
    else:
        shutil.rmtree(bench.room)
    totals(read(log))


def source_of(fault: Any) -> Path:
    """The program that a fault is planted in."""
    from tests.verify.faults import PROGRAMS

    return PROGRAMS / f"{'' if hasattr(fault, 'module') else 'whole_'}{fault.program}.py"


def read(log: Path) -> list[dict[str, Any]]:
    """The lines of a log."""
    return [json.loads(line) for line in log.read_text().splitlines()]


class Bench:
    """Runs of one process: baselines of both, and targets held against them."""

    def __init__(self, log: Path) -> None:
        self.log, self.room = log, log.with_suffix(".room")
        self.room.mkdir(exist_ok=True)
        lines = read(log)
        self.done = {(line["program"], line["fault"]) for line in lines if "fault" in line}
        # names of the rows of a clean noisy run, by program
        self.usual = {line["clean"]: set(line["rows"]) for line in lines if "clean" in line}

    def baseline(self, source: Path) -> None:
        """Record a program with both, and run it once more clean, with noise."""
        from tests.verify.harness import execute, record, replay

        room, stem = self.room, source.stem
        base, golden, clean = (room / f"{stem}{end}" for end in (".jmb", "-dump", "-clean"))
        for left in (base, golden, clean, room / f"{stem}-out", room / f"{stem}-c.jmb"):
            shutil.rmtree(left, ignore_errors=True)  # of a run that was ended
        golden.mkdir()
        clean.mkdir()
        seconds: dict[str, float | None] = {
            "msprobe": self.timed(source, golden),
            "plain": self.timed(source, None),
        }
        program = room / "timed.py"
        program.write_text(
            f"import runpy, time\nbegin = time.process_time()\n"
            f"runpy.run_path({str(source)!r}, run_name='__main__')\n"
            f"open({str(room / 'time')!r}, 'w').write(str(time.process_time() - begin))\n"
        )
        from joymigrate.verify.settings import RecordingSettings

        shutil.rmtree(room / "timed.jmb", ignore_errors=True)
        execute(program, RecordingSettings(bundle=str(room / "timed.jmb")), ENVIRONMENT)
        seconds["verify"] = float((room / "time").read_text())
        record(source, base, ENVIRONMENT)
        apart(dumped, source, clean, True, room / "time")
        apart(compared, clean, golden, room / f"{stem}-out")
        rows = flagged(room / f"{stem}-out")
        self.usual[stem] = {row for _, row in rows}
        verdict = replay(base, source, room / f"{stem}-c.jmb", ENVIRONMENT, noise=1.0)
        self.say(
            clean=stem,
            rows=sorted(self.usual[stem]),
            alarms={"msprobe": len(rows), "verify": int(verdict.verdict.value == "fail")},
            seconds=seconds,
            bytes={"msprobe": size(golden), "verify": size(base)},
        )

    def timed(self, source: Path, folder: Path | None) -> float | None:
        """CPU seconds of a program, with the debugger where there is a folder; None where it breaks
        off."""
        (self.room / "time").unlink(missing_ok=True)
        ran = apart(dumped, source, folder, False, self.room / "time")
        return float((self.room / "time").read_text()) if ran else None

    def fault(self, number: int, fault: Any) -> None:
        """One planted fault, seen by both."""
        from tests.verify.harness import replay

        source, begin = source_of(fault), time.monotonic()
        if source.stem not in self.usual:
            self.baseline(source)
        room, stem = self.room, source.stem
        changed, dump = room / "target.py", room / f"{number}-dump"
        changed.write_text(fault.source())
        there, out = room / f"{number}.jmb", room / f"{number}-out"
        for left in (dump, there, out):
            shutil.rmtree(left, ignore_errors=True)
        dump.mkdir()
        ran = apart(dumped, changed, dump, True, room / "time")
        apart(compared, dump, room / f"{stem}-dump", out)
        rows = [r for r in flagged(out) if r[1] not in self.usual[stem]]
        try:
            mine = ours(replay(room / f"{stem}.jmb", changed, there, ENVIRONMENT, noise=1.0), fault)
        except RuntimeError:
            mine = (False, False)
        self.say(
            program=stem,
            fault=fault.name,
            inside=hasattr(fault, "module"),
            ran=ran,
            first=rows[:1],
            msprobe=theirs(rows, fault, dump),
            verify=mine,
            took=round(time.monotonic() - begin, 1),
        )
        for left in (dump, there, out):
            shutil.rmtree(left, ignore_errors=True)

    def say(self, **facts: Any) -> None:
        """One line of the log, and on the terminal."""
        line = json.dumps(facts)
        print(line, flush=True)
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def totals(lines: list[dict[str, Any]]) -> None:
    """What the log says of all parts so far."""
    faults = [line for line in lines if "fault" in line]
    clean = list({line["clean"]: line for line in lines if "clean" in line}.values())
    for who in ("msprobe", "verify"):
        seen, named = (sum(line[who][n] for line in faults) for n in (0, 1))
        taken = [c["seconds"] for c in clean if c["seconds"][who] is not None]
        ratio = sum(one[who] for one in taken) / sum(one["plain"] for one in taken)
        alarms = sum(c["alarms"][who] > 0 for c in clean)
        mean = sum(c["bytes"][who] for c in clean) / len(clean) / 1e6
        print(
            f"{who:<8} sees {seen} of {len(faults)}, names the place of {named}; false alarms "
            f"{alarms} of {len(clean)}; CPU time {ratio:.2f} x; {mean:.2f} MB a program"
        )


if __name__ == "__main__":
    main()
