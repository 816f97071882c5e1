"""Runs a kit: case by case in a worker process that is replaced when it hangs or dies.

Results go to `results.jsonl` in the state folder as they come; a second start goes on behind them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
PATIENCE_S = 120.0  # one case; a kernel that is compiled at first use takes a while
START_S = 900.0  # a worker: to import the chip's package on a busy machine
JOIN_S, COLLECTIVE_S = 300.0, 120.0  # to join the group; for the collective itself
PATHS = re.compile(r"(/[\w.\-+]+){2,}/?")
ADDRESSES = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{0,4}\b")
MINUTES = 60.0  # a run begins no case after them; a second start goes on


def main() -> int:
    """The command line of `python kit/run.py`; exit code 1 with a deviation."""
    parser = argparse.ArgumentParser(description="Meet predictions with a chip; writes score.json.")
    parser.add_argument("--device", help="such as cuda:0 or cpu (default: what is here)")
    parser.add_argument("--state", type=Path, default=Path("kit-state"), help="folder to resume")
    parser.add_argument("-o", "--output", type=Path, default=Path("score.json"))
    parser.add_argument("--section", action="append", help="only this section; repeatable")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds for one case")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="begin no case after them")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rank", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    kit = json.loads((HERE / "kit.json").read_text(encoding="utf-8"))
    if given.rank:
        return start_rank(kit, *given.rank)
    if given.section:
        kit["cases"] = [case for case in kit["cases"] if case["section"] in given.section]
    device = given.device or which_device(kit)
    given.state.mkdir(parents=True, exist_ok=True)
    if given.worker:
        return work(kit, device, given.state, given.until)
    started = time.time()
    given.until = started + 60 * given.minutes
    supervise(kit, device, given)
    results = read_results(given.state)
    score = build_score(kit, results, device, time.time() - started)
    text = json.dumps(score, indent=1, ensure_ascii=False) + "\n"
    given.output.write_text(text, encoding="utf-8")
    given.output.with_suffix(".html").write_text(page(score), encoding="utf-8")
    rest = f", {len(score['not_run'])} did not run (start again)" if score["not_run"] else ""
    print(f"{len(score['results'])} cases, {score['deviations']} deviate{rest}: {given.output}")
    return int(score["deviations"] > 0)


def which_device(kit: dict[str, Any]) -> str:
    """The accelerator of this machine; SystemExit where there is none."""
    import torch

    try:
        if kit.get("package"):
            load_package(kit, kit["device"])
            return f"{kit['device']}:0"
    except ImportError:
        pass
    if torch.cuda.is_available():
        return "cuda:0"
    package = kit.get("package") or kit["chip"]
    raise SystemExit(f"no accelerator here: neither {package} nor CUDA; --device cpu tries the kit")


def load_package(kit: dict[str, Any], device: str) -> None:
    """Import the chip's package where the device is the chip's."""
    if kit.get("package") and device.split(":")[0] == kit["device"]:
        importlib.import_module(kit["package"])


def read_results(state: Path) -> dict[str, dict[str, Any]]:
    """Finished cases by their id; a half-written last line is left out."""
    path = state / "results.jsonl"
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found[row["id"]] = row
    return found


def append(state: Path, row: dict[str, Any]) -> None:
    """One more result."""
    with (state / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def supervise(kit: dict[str, Any], device: str, given: argparse.Namespace) -> None:
    """Keep a worker going until every case has a result."""
    command = [sys.executable, str(HERE / "run.py"), "--worker", "--state", str(given.state)]
    command += ["--device", device, "--until", str(given.until)]
    for section in given.section or ():
        command += ["--section", section]
    plain = [case["id"] for case in kit["cases"] if case["section"] != "collective"]
    while left := [one for one in plain if one not in read_results(given.state)]:
        if time.time() > given.until:
            break
        (given.state / "current").write_text("")  # a new worker is not yet at the last one's case
        with (given.state / "worker.log").open("ab") as log:
            worker = subprocess.Popen(command, stdout=log, stderr=log)
            outcome = watch(worker, given.state, given.patience)
        done = read_results(given.state)
        current = (given.state / "current").read_text() if outcome else ""
        if outcome and current in left and current not in done:
            append(given.state, {"id": current, "outcome": outcome, "message": tail(given.state)})
        elif outcome and not current:
            raise SystemExit(f"the kit does not start on {device}: {tail(given.state)}")
        elif not outcome and left[0] not in done and worker.returncode:
            raise SystemExit(f"the kit can't run on {device}: {tail(given.state)}")
    for case in kit["cases"]:
        waits = case["section"] == "collective" and case["id"] not in read_results(given.state)
        if waits and time.time() < given.until:
            append(
                given.state,
                {"id": case["id"], **collective(case, device, kit["backends"], given.state)},
            )


def watch(worker: subprocess.Popen[bytes], state: Path, patience: float) -> str:
    """Wait for the worker: empty when it ended by itself and well, else `hung` or `crashed`.

    `patience` counts from the start of a case, START_S until the first one begins.
    """
    mark, since = "", time.monotonic()
    while worker.poll() is None:
        time.sleep(0.2)
        path = state / "current"
        now = path.read_text() if path.is_file() else ""
        if now != mark:
            mark, since = now, time.monotonic()
        if time.monotonic() - since > (patience if mark else START_S):
            worker.kill()
            worker.wait()
            return "hung"
    if worker.returncode and mark:
        return "crashed"
    return ""


def tail(state: Path) -> str:
    """The last line that the worker left."""
    path = state / "worker.log"
    text = path.read_text(errors="replace").strip() if path.is_file() else ""
    return text.splitlines()[-1][:300] if text else ""


def work(kit: dict[str, Any], device: str, state: Path, until: float | None = None) -> int:
    """All cases that have no result yet, one after the other; none begins after `until`."""
    import torch

    from . import operators, programs, vendor_kernels
    from .tensors import read_safetensors

    torch.set_warn_always(True)
    load_package(kit, device)
    masters = read_safetensors(HERE / "inputs.safetensors")
    done = read_results(state)
    calls = {case["id"]: case["call"] for case in kit["cases"]}
    on_cpu = {calls.get(one) for one, row in done.items() if row["outcome"] == "fallback"}
    kinds = {"memory": programs.memory, "training": programs.train, "serving": programs.serve}
    for case in kit["cases"]:
        if case["id"] in done or case["section"] == "collective":
            continue
        if until is not None and time.time() > until:
            break
        (state / "current").write_text(case["id"])
        try:
            if case["section"] in ("operator", "vendor", "kernel"):
                found = (
                    vendor_kernels.run_case(case, device) if case["section"] == "kernel"
                    else operators.run_case(case, masters, device)
                )  # fmt: skip
                if found["outcome"] == "fallback":  # the package says so once per operator
                    on_cpu.add(case["call"])
                elif found["outcome"] == "accepted" and case["call"] in on_cpu:
                    found["outcome"] = "fallback"
            elif case["section"] == "time":
                before = read_results(state).get(case["id"].removeprefix("time "), {})
                found = {"outcome": "skipped", "message": "the operator itself does not run"}
                if before.get("outcome") == "accepted":
                    found = programs.time_of(case, masters, device)
            elif case["section"] == "rate":
                found = programs.rate(case["call"], case["dtype"], device)
            else:
                found = kinds[case["section"]](device)
        except (RuntimeError, NotImplementedError, AttributeError, ImportError, OSError) as error:
            found = {"outcome": "refused", "message": str(error)}  # such as no package of the chip
        append(state, {"id": case["id"], **found})
    (state / "current").write_text("")
    return 0


def hangs(ranks: list[subprocess.Popen[bytes]], state: Path) -> bool:
    """Whether the ranks do not end: long to join, and COLLECTIVE_S from when both have joined."""
    start, joined = time.monotonic(), None
    while any(rank.poll() is None for rank in ranks):
        time.sleep(0.1)
        now = time.monotonic()
        if joined is None and all((state / f"joined-{rank}").exists() for rank in (0, 1)):
            joined = now
        if now - (joined or start) > (COLLECTIVE_S if joined else JOIN_S):
            return True
    return False


def collective(
    case: dict[str, Any], device: str, backends: dict[str, str], state: Path
) -> dict[str, Any]:
    """Two processes on two cards: accepted, wrong, refused or hung."""
    for number in (0, 1):
        (state / f"joined-{number}").unlink(missing_ok=True)
    kind = device.split(":")[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    base = [sys.executable, str(HERE / "run.py"), "--rank", case["call"]]
    ranks = [
        subprocess.Popen(
            [*base, str(rank), kind, backends.get(kind, "gloo"), f"{port}@{state}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    texts: list[str] = []
    try:
        if hangs(ranks, state):
            return {"outcome": "hung"}
        for rank in ranks:
            _, error = rank.communicate()
            texts.append(error.decode(errors="replace").strip())
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    codes = [rank.returncode for rank in ranks]
    if codes == [0, 0]:
        return {"outcome": "accepted"}
    if 3 in codes:
        return {"outcome": "wrong result"}
    lines = [line for text in texts for line in text.splitlines() if "Error" in line]
    return {"outcome": "refused", "message": lines[-1] if lines else f"exit codes {codes}"}


def start_rank(
    kit: dict[str, Any], name: str, rank: str, kind: str, backend: str, port: str
) -> int:
    """One process of a collective."""
    port, _, state = port.partition("@")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    load_package(kit, kind)
    from .programs import run_rank

    run_rank(name, int(rank), kind, backend, Path(state))
    return 0


def build_score(
    kit: dict[str, Any], results: dict[str, dict[str, Any]], device: str, seconds: float
) -> dict[str, Any]:
    """The document `score/1`: no paths, no names of machines or users."""
    from .judge import attribute, deviations

    rows = []
    for case in kit["cases"]:
        found = results.get(case["id"])
        if found is None:
            continue
        shown = {k: v for k, v in found.items() if k not in ("id", "message")}
        message = scrub(str(found.get("message", ""))).strip().split("\n")[0][:240]
        rows.append({
            "id": case["id"], "section": case["section"], "op": case["op"],
            "dtype": case["dtype"], "layout": case["layout"], "call": case["call"],
            "args": case["args"], "kwargs": case.get("kwargs") or {},
            **({"reference": case["reference"]} if case.get("reference") else {}),
            **shown, "message": message,
            "predicted": case.get("prediction") or {},
            "deviations": deviations(case, case.get("prediction") or {}, found),
        })  # fmt: skip
    attribute(rows)
    return {
        "schema": "joymigrate.score/1",
        "kit": kit["id"],
        "chip": kit["chip"],
        "rehearsal": bool(os.environ.get("JOYMIGRATE_REHEARSE")),
        "device": device.split(":")[0],
        "device_name": device_name(device),
        "versions": versions(kit.get("package") or ""),
        "environment": record_versions(kit),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(seconds, 1),
        "deviations": sum(bool(row["deviations"]) and not row.get("because") for row in rows),
        "not_run": [case["id"] for case in kit["cases"] if case["id"] not in results],
        "results": rows,
    }


def scrub(text: str) -> str:
    """A message without paths, addresses, and the names of this machine and user."""
    text = ADDRESSES.sub("<address>", PATHS.sub("…/", text))
    for name, mark in ((socket.gethostname(), "<host>"), (os.environ.get("USER", ""), "<user>")):
        if len(name) > 2:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", mark, text)
    return text


def device_name(device: str) -> str:
    """What the card calls itself."""
    import torch

    module = getattr(torch, device.split(":")[0], None)
    try:
        return str(module.get_device_name(0)) if module else device
    except (AttributeError, RuntimeError):
        return device


def versions(package: str) -> dict[str, str]:
    """Of Python, the machine's kind, torch and the chip's package."""
    import torch

    found = {"python": platform.python_version(), "machine": platform.machine()}
    found["torch"] = str(torch.__version__)
    loaded = sys.modules.get(package)
    if loaded is not None:
        found[package] = str(getattr(loaded, "__version__", "?"))
    return found


def record_versions(kit: dict[str, Any]) -> dict[str, Any]:
    """The versions of driver and toolkit that this machine names."""
    from types import SimpleNamespace

    places = kit.get("places")
    if not places:
        return {}
    look = importlib.import_module("look")  # lies beside run.py

    shape = SimpleNamespace(**{**places, "sdk": SimpleNamespace(**places["sdk"])})
    kit_sdk, cards = look.sdk(shape), look.smi(shape) or {"cards": []}
    return {
        "sdk": kit_sdk.get("version"),
        "driver": look.driver(shape).get("version"),
        "cards": len(cards["cards"]),
        "unhealthy": sum(card["health"] != "OK" for card in cards["cards"]),
    }


def page(score: dict[str, Any]) -> str:
    """A readable page: what deviates first, then all cases."""
    import html

    def row(one: dict[str, Any]) -> str:
        cells = (one["id"], one["predicted"].get("outcome", ""), one["outcome"],
                 ", ".join(one["deviations"]), one["message"])  # fmt: skip
        return "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>"

    ordered = sorted(score["results"], key=lambda one: not one["deviations"])
    grade = "rehearsed" if score["rehearsal"] else "measured"
    unchecked = sum("unchecked" in one for one in score["results"])
    told = f"{len(score['not_run'])} cases did not run; of {unchecked} no result was compared."
    head = "".join(
        f"<th>{name}</th>" for name in ("case", "predicted", "found", "deviates", "message")
    )
    return (
        "<!doctype html><meta charset=utf-8><title>Chip-day kit</title>"
        "<style>body{font:15px sans-serif;margin:2em}td,th{padding:.2em .6em;text-align:left;"
        "border-bottom:1px solid #ccc}</style>"
        f"<h1>{html.escape(score['device_name'])}: {score['deviations']} of "
        f"{len(score['results'])} cases deviate</h1><p>Grade: {grade}, {score['date']}. {told}</p>"
        f"<table><tr>{head}</tr>{''.join(map(row, ordered))}</table>"
    )
