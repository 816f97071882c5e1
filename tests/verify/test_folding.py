"""One failure per fault: shapes that follow from another shape."""

from __future__ import annotations

from joymigrate.verify.findings import Findings
from joymigrate.verify.folding import of_other_shape, one_failure_per_fault
from joymigrate.verify.model import Difference, RecordStatus
from joymigrate.verify.module_stage import JudgedDifference


def row(place: str, metric: str, order: int, stage: str = "S3", op: str = "output") -> Difference:
    return Difference(
        module=place,
        call=0,
        phase="forward",
        op=op,
        metric=metric,
        value=None,
        limit=None,
        status=RecordStatus.FAIL,
        stage=stage,
        step=0,
        order=order,
    )


def judged(*places: tuple[str, str]) -> list[JudgedDifference]:
    return [
        JudgedDifference(row(place, metric, order), place=place, kind=place, rounding=False)
        for order, (place, metric) in enumerate(places)
    ]


def failed(rows: list[Difference]) -> list[str]:
    return [row.module for row in rows if row.status.failed]


SHAPES = (("net:embed", "shape"), ("net:block", "shape"), ("net:head", "relative_l2"),
          ("other:", "shape"))  # fmt: skip


def test_another_shape_is_one_failure_of_a_model_and_hides_nothing_else() -> None:
    assert failed(one_failure_per_fault(judged(*SHAPES), set())) == [
        "net:embed", "net:head", "other:"]  # fmt: skip


def test_shapes_follow_from_the_shape_of_another_batch() -> None:
    rows = judged(*SHAPES)
    of_other_shape(rows, Findings(rows=[row("net", "sha256", 0, "S1", "batch, input 0")]))
    assert failed([item.difference for item in rows]) == ["net:head"]
    rows = judged(*SHAPES)
    of_other_shape(rows, Findings(rows=[row("net", "sha256", 0, "S1", "buffer mask")]))
    assert len(failed([item.difference for item in rows])) == 4
