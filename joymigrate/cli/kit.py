"""Meet predictions with a real chip: make a kit, score what it found, join scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._common_options import TO
from joymigrate.cli._groups import group
from joymigrate.cli._output import one_of, talk
from joymigrate.errors import Exit, JoyError
from joymigrate.files import read_json

NEEDS = {"make": ("extra:torch",)}
app = group("Meet predictions with a real chip: make a kit, score what it found, join scores.")
MOST_BYTES = 50 << 20
BY = ("op", "dtype", "version")
SHOWN = 40


@app.command("make")
def make_kit(
    seals: list[Path] = typer.Argument(
        None, metavar="[SEAL]...", help="Sealed predictions whose calls the kit runs as well."
    ),
    to: str | None = TO,
    output: Path = typer.Option(Path("kit.zip"), "-o", "--output", metavar="FILE", help="The zip."),
    no_rehearsal: bool = typer.Option(
        False, "--no-rehearsal", help="Predict on the CPU instead of the simulated chip."
    ),
) -> int:
    """Write a zip that meets predictions with a chip; it needs torch and the chip's package only.

    It holds no code and no data of yours: small inputs, and what is predicted of each call.
    """
    from joymigrate.chips import calibration
    from joymigrate.cli._installation import can_rehearse
    from joymigrate.extras import need
    from joymigrate.run.kit import make, seal

    need("torch", "torch", what="a kit")
    chip = choose_chip(to)
    sealed = [seal.read(path) for path in seals or ()]
    for path, document in zip(seals or (), sealed, strict=True):
        if document["chip"] != chip.name:
            raise JoyError(f"sealed for {document['chip']}, not {chip.name}", where=str(path))
    known = calibration.load(chip.name)
    rehearsed = not no_rehearsal and can_rehearse(chip)
    data, kit = make.make(chip, sealed, known, rehearsed=rehearsed)
    if len(data) > MOST_BYTES:
        raise JoyError(f"the kit has {len(data) >> 20} MiB, more than 50", help="fewer seals")
    make.write(output, data)
    said = [case.get("prediction", {}).get("grade", "nothing") for case in kit["cases"]]
    counts = ", ".join(f"{said.count(grade)} {grade}" for grade in sorted(set(said)))
    talk([f"{output}: {len(kit['cases'])} cases ({counts}), {len(data) / 1e6:.2f} MB"])
    left = kit["left_out"]
    talk([f"left out: {op}: {why}" for op, why in sorted(left.items())][:SHOWN])
    return Exit.OK


@app.command("score")
@answers("kit-quality")
def score_kit(
    scores: list[Path] = typer.Argument(..., metavar="SCORE...", help="score.json of a kit."),
    by: str = typer.Option("op", "--by", help="op, dtype or version."),
    calibrate: Path | None = typer.Option(
        None, "--calibration", metavar="FILE", help="Write it here, not to joymigrate's cache."
    ),
    no_calibration: bool = typer.Option(False, "--no-calibration", help="Only show the figures."),
) -> Answer:
    """Precision and recall of the predictions; what was measured is known from then on."""
    from joymigrate import chips
    from joymigrate.chips import calibration
    from joymigrate.run.kit import score

    one_of(by, BY, "--by")
    documents = [score.check(read_json(path), str(path)) for path in scores]
    for path, one in zip(scores, documents, strict=True):
        device = chips.get(one["chip"]).device
        if not no_calibration and one.get("device", device) == device:
            score.require_machine(one, device, str(path), "--no-calibration shows its figures")
    rows = [
        {**row, "version": str(document["versions"].get(chips.get(document["chip"]).package, ""))}
        for document in documents
        for row in score.judge_rows(document)
    ]
    table, overall = score.quality(rows, by), score.quality([{**r, "all": ""} for r in rows], "all")
    if not no_calibration:
        for name in sorted({str(one["chip"]) for one in documents}):
            device = chips.get(name).device
            mine = [one for one in documents if one["chip"] == name]
            doubts = [score.find_doubt(one, device) for one in mine]
            talk([f"no calibration is made of a score: {doubt}" for doubt in doubts if doubt])
            mine = [one for one, doubt in zip(mine, doubts, strict=True) if not doubt]
            if not mine:
                continue
            path = calibrate or calibration.place(name)
            known = calibration.load(name)
            made = score.calibrate(mine, known)
            calibration.save(made, path)
            talk([f"{path}: rehearsals and the next kit read it"])
            if alone := score.count_alone(made):
                talk([f"{alone} rows have one source: nobody else has verified them"])
    doubtful = any(score.find_doubt(one, chips.get(one["chip"]).device) for one in documents)
    grade = "stated" if doubtful else "measured"
    if any(one["rehearsal"] for one in documents):
        grade = "rehearsed"
    deviating = [row for row in rows if row["deviations"] and not row.get("because")]
    document = {
        "schema": "joymigrate.kit-quality/1", "grade": grade, "overall": overall[0],
        "by": table, "deviations": [
            {"id": row["id"], "names": row["deviations"], "message": row.get("message", "")}
            for row in deviating
        ],
    }  # fmt: skip
    text = "\n".join(lines(table, overall[0], deviating, by, grade)) + "\n"
    return Answer(document, text)


@app.command("merge")
def merge_scores(
    scores: list[Path] = typer.Argument(..., metavar="SCORE...", help="Scores of many people."),
    to: str | None = TO,
    check: bool = typer.Option(False, "--check", help="Only check the files, for a CI."),
    output: Path = typer.Option(
        Path("calibration.json"), "-o", "--output", metavar="FILE", help="The joint calibration."
    ),
) -> int:
    """Join scores of many people into one calibration; each row keeps its sources."""
    from joymigrate import chips
    from joymigrate.chips import calibration
    from joymigrate.run.kit import score

    documents = [score.check(read_json(path), str(path)) for path in scores]
    for path, one in zip(scores, documents, strict=True):
        score.require_machine(one, chips.get(one["chip"]).device, str(path))
    if check:
        for path, one in zip(scores, documents, strict=True):
            if one["rehearsal"]:
                raise JoyError(
                    "made on a simulated chip: it says nothing of a chip", where=str(path),
                    help="a score to share is made by python kit/run.py beside a chip",
                )  # fmt: skip
        talk([f"{len(documents)} scores can be read, are of chips, and hold no paths or addresses"])
        return Exit.OK
    empty = calibration.Calibration(choose_chip(to).name)
    joined = score.calibrate(documents, empty)
    calibration.save(joined, output)
    talk([f"{output}: {len(joined.rows)} cases out of {len(documents)} scores"])
    return Exit.OK


def choose_chip(to: str | None) -> Any:
    """The chip that is named, or the settings' one."""
    from joymigrate import chips, config

    return chips.target(config.load(Path(), {"to": to})["to"])


def lines(
    table: Sequence[Mapping[str, Any]],
    overall: Mapping[str, Any],
    deviating: Sequence[Mapping[str, Any]],
    by: str,
    grade: str,
) -> list[str]:
    """The figures as text."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f} %"

    text = [
        f"{overall['cases']} cases, {overall['deviations']} deviate (grade: {grade})",
        f"troubles: precision {share(overall['precision'])}, recall {share(overall['recall'])}",
    ]
    for row in table:
        if row["deviations"] or row["precision"] is not None:
            figures = f"{row['deviations']} of {row['cases']} deviate"
            parts = f"precision {share(row['precision'])}, recall {share(row['recall'])}"
            text.append(f"  {row[by]:<48} {figures}; {parts}")
    text += ["", "Deviations"] if deviating else []
    for row in deviating:
        text.append(f"  {row['id']}: {', '.join(row['deviations'])}")
        if row.get("message"):
            text.append(f"      {row['message']}")
    return text
