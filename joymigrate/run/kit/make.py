"""`kit make`: a zip that meets predictions with a chip, on a machine that has torch and no more."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.chips import Chip
from joymigrate.chips.calibration import Calibration
from joymigrate.errors import JoyError
from joymigrate.files import write_output
from joymigrate.run.kit import cases, kernels, seal_cases

RUNNER = Path(__file__).parent / "runner"
TRIAL_S = 3600
DTYPES = {"float64": "F64", "float32": "F32", "int64": "I64", "bool": "BOOL"}
README = """\
Run on the machine with the chip; torch and the chip's package are enough:

    python kit/run.py            # goes on where it stopped; writes score.json and score.html

It holds no code or data of yours. score.json holds versions, figures and the chip's messages, with
paths left out. Then, anywhere: joymigrate kit score score.json
"""


def make(
    chip: Chip,
    seals: Sequence[Mapping[str, Any]],
    calibration: Calibration,
    *,
    predict: bool = True,
    rehearsed: bool = True,
) -> tuple[bytes, dict[str, Any]]:
    """The zip and its `kit.json`. `predict` runs every case once, on the simulated chip where the
    chip can be rehearsed, else on the CPU; what was measured comes before what was predicted."""
    listed, masters, backends = cases.build(chip)
    own, left_out = kernels.cases(chip)
    listed += own
    known = {case["id"] for case in listed}
    for seal in seals:
        for signature in seal["predictions"]["signatures"]:
            case = seal_cases.of_signature(signature, masters)
            if isinstance(case, str):
                left_out[str(signature["op"])] = case
            elif case["id"] not in known:
                known.add(case["id"])
                listed.append(case)
    kit: dict[str, Any] = {
        "schema": "joymigrate.kit/1", "id": "", "chip": chip.name, "backends": backends,
        "device": chip.device, "package": chip.package,
        "places": places_of(chip), "cases": listed, "left_out": left_out,
    }  # fmt: skip
    inputs = safetensors(masters)
    if predict:
        add_predictions(kit, inputs, chip, rehearsed)
        drop_uncalled(kit)
    for case in kit["cases"]:
        measured = calibration.prediction(case)
        if measured is not None:
            case["prediction"] = measured
    kit["id"] = hashlib.sha256(dumps(kit).encode()).hexdigest()[:16]
    return pack(kit, inputs), kit


def drop_uncalled(kit: dict[str, Any]) -> None:
    """Leave out the sample calls that joymigrate itself would not make on the chip."""
    gone = [
        case for case in kit["cases"]
        if case["section"] == "kernel" and case.get("prediction", {}).get("outcome") == "skipped"
    ]  # fmt: skip
    kit["left_out"] |= {
        f"{case['op']}: {case.get('sample', case['id'])}": case["prediction"].get("message", "")
        for case in gone
    }
    kit["cases"] = [case for case in kit["cases"] if case not in gone]


def dumps(value: Any) -> str:
    """JSON that is the same for the same content."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def places_of(chip: Chip) -> dict[str, Any] | None:
    """Where the kit's doctor looks."""
    from joymigrate.environment.rules import rules_of

    rules = rules_of(chip)
    return asdict(rules.record) if rules else None


def safetensors(masters: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """The inputs as a safetensors file."""
    header, body, at = {}, io.BytesIO(), 0
    for name, array in sorted(masters.items()):
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": DTYPES[str(array.dtype)], "shape": list(array.shape),
            "data_offsets": [at, at + len(data)],
        }  # fmt: skip
        body.write(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body.getvalue()


def files(kit: Mapping[str, Any], inputs: bytes) -> dict[str, bytes]:
    """Everything in the zip, by path."""
    from joymigrate.environment import look

    found = {
        f"kit/runner/{path.name}": path.read_bytes()
        for path in sorted(RUNNER.glob("*.py")) if path.name != "entry.py"
    }  # fmt: skip
    source = Path(look.__file__)
    found["kit/look.py"] = source.read_bytes()
    found["kit/run.py"] = (RUNNER / "entry.py").read_bytes()
    found["kit/kit.json"] = dumps(kit).encode()
    found["kit/inputs.safetensors"] = inputs
    found["kit/README.txt"] = README.encode()
    found |= kernels.files(str(kit["chip"]))
    return found


def pack(kit: Mapping[str, Any], inputs: bytes) -> bytes:
    """The zip, the same for the same content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files(kit, inputs).items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def add_predictions(kit: dict[str, Any], inputs: bytes, chip: Chip, rehearsed: bool) -> None:
    """Run the kit once without a chip, and keep what came out as the prediction of each case."""
    with tempfile.TemporaryDirectory(prefix="joymigrate-kit-") as temporary:
        folder = Path(temporary)
        for name, data in files(kit, inputs).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        run = [sys.executable, str(folder / "kit" / "run.py"), "--state", str(folder / "state")]
        run += ["-o", str(folder / "score.json")]
        if rehearsed:
            run += ["--device", f"{chip.device}:0"]
            front = [sys.executable, "-m", "joymigrate", "rehearse", "--to", chip.name, "-q"]
            run = [*front, "--strict", "--devices", "2", "--", *run]
        else:
            run += ["--device", "cpu"]
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        done = subprocess.run(
            run, capture_output=True, text=True, timeout=TRIAL_S, check=False, env=environment
        )
        score = folder / "score.json"
        if not score.is_file():
            told = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise JoyError(f"the kit could not be tried: {told}", help="joymigrate doctor rehearse")
        results = {row["id"]: row for row in json.loads(score.read_text())["results"]}
    for case in kit["cases"]:
        row = results.get(case["id"])
        # What a run on the CPU fails at says nothing of the chip: nothing is predicted then.
        if row is not None and (rehearsed or row["outcome"] == "accepted"):
            case["prediction"] = prediction(row, case, rehearsed)


KEPT = (
    *("outcome", "message", "dtypes", "shapes", "strides", "error", "gradient_error"),
    *("losses", "tokens", "total_bytes", "allocated_bytes", "unchecked"),
    *("rate", "unit", "length"),
)


def prediction(row: Mapping[str, Any], case: Mapping[str, Any], rehearsed: bool) -> dict[str, Any]:
    """What is said before the chip is seen. Of times nothing is said."""
    if case["section"] in ("time", "rate"):
        return {"outcome": row["outcome"], "grade": "rehearsed" if rehearsed else "documented"}
    kept = {key: row[key] for key in KEPT if key in row and row[key] not in ("", None)}
    return {**kept, "grade": "rehearsed" if rehearsed else "documented"}


def write(path: Path, data: bytes) -> None:
    """The zip, whole or not at all."""
    write_output(path, data)
