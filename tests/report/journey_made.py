"""A journey's folder with every kind of evidence, made by hand: small, with odd values in it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

LOSSES = [2.5, 2.25, 2.0, float("nan"), 1.5]
SCAN = {
    "schema": "joymigrate.scan/1",
    "files": {"scanned": 1203, "skipped": []},
    "summary": {"safe": 1000, "unsafe": 1, "report": 2, "by_rule": {}},
    "readiness": {
        "sites": 1003,
        "files": 2,
        "automatic": 0.997,
        "automatic_with_unsafe": 0.998,
        "minutes": 31.0,
        "areas": [
            {"area": "device", "safe": 1000, "unsafe": 1, "report": 0, "minutes": 1.0},
            {"area": "<own>", "safe": 0, "unsafe": 0, "report": 2, "minutes": 30.0},
        ],
        "manual": [
            {
                "title": "TF32 <switches>",
                "message": "m",
                "samples": [{"text": "a `b` & c", "sites": 2}],
                "sites": 2,
                "minutes": 30.0,
            }
        ],
    },
}
REWRITE = {
    "summary": {"edits": 1000, "files": 1},
    "files": [{"path": "a.py", "status": "modified", "edits": 1000}],
}
REHEARSE = {
    "soc": "Chip9000",
    "exit_code": 0,
    "calls": 1258,
    "memory_bytes": 64 * 2**30,
    "checked_by": {"vendor_cpp": 0.9189, "reference": 0.027, "cpu_alias": 0.0541},
    "fallbacks": [{"op": "aten::lgamma", "calls": 48, "where": ["train.py:53"]}],
    "traps": [{"where": "a.py:3", "message": "is refused at 100 %", "remedy": "drop 1"}],
    "peak_memory_bytes": {"d:0": 616960, "d:1": 5 * 2**20},
    "ranks": [
        {"rank": rank, "timeline": [[0.46, 124928], [0.7, 616960], [0.81, 300 * rank]]}
        for rank in (0, 1)
    ],
}
MEMORY = {
    "rehearsal": True,
    "processes": [
        {"rank": 0, "peak_bytes": {"d:0": 616960}, "timeline": [], "held": None},
        {
            "rank": 1,
            "peak_bytes": {"d:1": 5 * 2**20},
            "timeline": [[0.5, 2**20], [1.5, 5 * 2**20]],
            "held": {
                "device": "d:1", "steps": 3, "unit": "step", "ended": "steps", "backwards": 3,
                "allocator_peak_bytes": 4 * 2**20,
                "peak": {
                    "at": 1.5,
                    "total_bytes": 3 * 2**20 + 4096,
                    "bytes": {"weights": 2**20, "gradients": 2**19, "optimiser": 2**20,
                              "activations": 2**19, "other": 4096},
                },
                "points": [[0.5 * n, 2**20, 2**19 * (n % 2), 2**20, 2**18 * n, n]
                           for n in range(6)],
            },
        },
    ],
}  # fmt: skip
COVERAGE = {
    "share": {"ops": 0.5, "calls": 0.986207, "time": 0.93},
    "ops": [
        {"op": "aten::lgamma", "overload": "", "status": "cpu_fallback", "calls": 48,
         "self_us": 368.7, "where": "train.py:53", "alternative": "use 2 of `gamma`", "note": ""},
        {"op": "aten::mm", "overload": "out", "status": "native", "calls": 3432,
         "self_us": 9000.0, "where": None, "alternative": "", "note": ""},
    ],
}  # fmt: skip
ADVICE = {
    "advice": [
        {"id": "SYNC", "title": "3 waits", "level": "warning", "action": "read every `100` steps",
         "share": 0.0002, "places": [{"where": "train.py:30"}]},
    ],
    "summary": {"error": 0, "warning": 1, "note": 0},
}  # fmt: skip


def record(stage: str, phase: str, module: str, value: Any, limit: float, metric: str) -> dict:
    return {"stage": stage, "phase": phase, "module": module, "value": value, "limit": limit,
            "metric": metric, "step": 0, "status": "PASS"}  # fmt: skip


VERDICT = {
    "verdict": "inconclusive",
    "coverage": {"compared": 288, "recorded": 300, "modules": 0.96},
    "stages": [
        {"stage": "S0", "title": "environment", "verdict": "pass", "compared": 1, "recorded": 1},
        {"stage": "S5", "title": "free", "verdict": "skipped", "compared": 287, "recorded": 299},
    ],
    "growth": {
        "depth": [
            {"module": f"m{order}", "order": order, "step": step, "error": order * 1.5e-7}
            for step in (0, 1)
            for order in (0, 1, 2)
        ]
    },
    "records": [
        record("S3", "forward", "m0", 0.0, 2.0, "error_ratio"),
        record("S3", "forward", "m1", 0.27759, 2.0, "error_ratio"),
        record("S4", "backward", "m1", "nan", 10.0, "error_ratio"),
        record("S4", "backward", "m0", 3.5, 10.0, "error_ratio"),
        record("S5", "forward", "m0", 1e-8, 3.8e-6, "relative_l2"),
    ],
}
LOSS = {
    "verdict": "pass",
    "curve": {
        "n": 5,
        "limit_pass": 0.01,
        "values": {"loss": {"mean_relative": 0.00123, "max_relative": 0.0035}},
    },
}
SPEED = {
    "rehearsal": True,
    "baseline": {
        "steps_per_s": 2.802,
        "points": [{"step": n, "steps_per_s": 2.5 + n / 10} for n in (1, 2, 3, 4)],
        "printed": {"unit": "tokens/s", "median": 856.0},
    },
    "chip": None,
}
PROVENANCE = {
    "date": "2026-01-02T03:04:05+00:00",
    "chip": {"name": "ascend", "title": "Chip of 2026", "here": False},
    "versions": {"joymigrate": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "other": None},
    "machine": {"system": "Linux-6.1", "processor": "CPU 5"},
    "git": {"commit": "3c7522990abaf8de6bfb540fe4aab352f579bd6b", "changed_files": 2},
    "repeat": "joymigrate migrate . --steps 0-2 --fresh",
}
ANSWER = {"usage": {"completion_tokens": 8}}
FILES: dict[str, Any] = {
    "scan/scan.json": SCAN,
    "rewrite/rewrite.json": REWRITE,
    "rehearse/rehearse.json": REHEARSE,
    "rehearse/memory.json": MEMORY,
    "coverage/coverage.json": COVERAGE,
    "advice/advice.json": ADVICE,
    "verify/verdict.json": VERDICT,
    "train/loss.json": LOSS,
    "train/speed.json": SPEED,
    "serve/answer.json": ANSWER,
    "provenance.json": PROVENANCE,
}
CURVES = ("train/baseline.jsonl", "train/chip.jsonl")


def step(name: str, figures: dict, evidence: tuple[str, ...], **more: Any) -> dict:
    return {
        "name": name, "status": "done", "summary": f"{name} 7", "figures": figures,
        "evidence": list(evidence), "commands": [f"joymigrate {name} 5"], "verdict": "pass",
        "help": "", "seconds": 1.52, **more,
    }  # fmt: skip


def steps() -> list[dict]:
    """The nine steps of a journey, all of them taken."""
    against = "the original on this machine's CPU"
    return [
        step("scan", {"files": 1203, "sites": 1003, "safe": 1000, "unsafe": 1, "by_hand": 2,
                      "automatic_pct": 99.7}, ("scan/scan.json", "provenance.json")),
        step("baseline", {"of": "original", "device": "CPU", "losses": 5}, ()),
        step("rewrite", {"edits": 1000, "files": 1, "step": "0002"}, ("rewrite/rewrite.json",)),
        step("rehearse", {"exit_code": 0, "fallbacks": 1, "traps": 1, "peak_bytes": 5 * 2**20},
             ("rehearse/rehearse.json", "rehearse/memory.json")),
        step("coverage", {"operators": 2, "share": COVERAGE["share"]}, ("coverage/coverage.json",)),
        step("advice", {"advice": 1}, ("advice/advice.json",)),
        step("verify", {"verdict": "inconclusive", "coverage": VERDICT["coverage"],
                        "baseline": against, "first_divergence": None}, ("verify/verdict.json",),
             verdict="inconclusive", help="compare 2 more"),
        step("train", {"losses": [5, 5], "verdict": "pass", "baseline": against},
             ("train/loss.json", "train/speed.json", *CURVES)),
        step("serve", {"ready_s": 3.25, "tokens": 8, "answer_s": 0.125}, ("serve/answer.json",)),
    ]  # fmt: skip


def journey(root: Path, **more: Any) -> tuple[dict[str, Any], Path]:
    """A journey's document, and its folder below `root` with all evidence and a ledger."""
    folder = root / ".joymigrate" / "journey"
    for name, content in FILES.items():
        write(folder / name, json.dumps(content))
    for name, scale in zip(CURVES, (1.0, 1.00123), strict=True):
        rows = [json.dumps({"step": n, "loss": v * scale}) for n, v in enumerate(LOSSES)]
        write(folder / name, "\n".join(rows) + "\n")
    write(folder / "../steps/0002/change.patch", "+1\n")
    document = {
        "schema": "joymigrate.journey/1", "verdict": "inconclusive", "grade": "rehearsed",
        "rehearsal": True, "chip": "ascend", "project": str(root / "my 2nd <project>"),
        "entry": ["python", "train.py", "--steps", "5"], "style": "agnostic", "unsafe": False,
        "rewrite_step": "0002", "journey": steps(), **more,
    }  # fmt: skip
    write(folder / "journey.json", json.dumps(document))
    write(folder / "../ledger.jsonl", "".join(entries(folder, document)))
    return document, folder


def entries(folder: Path, document: dict[str, Any]) -> list[str]:
    """The ledger's lines, with the hashes of the evidence."""
    return [
        json.dumps(
            {
                "kind": f"migrate.{one['name']}",
                "outputs": [
                    {
                        "path": f".joymigrate/journey/{name}",
                        "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
                    }
                    for name in one["evidence"]
                ],
            }
        )
        + "\n"
        for one in document["journey"]
    ]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
