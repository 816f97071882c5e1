"""Checkpoints of tables: whole, of changes, resumed to the bit, exported."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from joymigrate.errors import JoyError
from joymigrate.run.train import Checkpointer
from joymigrate.run.train.tables import (
    AdmissionRule,
    Eviction,
    RowOptimiser,
    TableOptions,
    TablePipeline,
)
from joymigrate.run.train.tables.row_files import (
    RowFiles,
    export_rows,
    file_name,
    merge,
    save,
    take_over,
)
from joymigrate.run.train.tables.table import Table
from joymigrate.run.train.tables.table_shape import TableShape
from tests.run.train.tables.test_pipeline import ClickModel, batches

OPTIONS = {
    "static": TableOptions(),
    "cache": TableOptions(cache_rows=30),
    "dynamic": TableOptions(
        dynamic=True, cache_rows=40, admission=AdmissionRule(count=2),
        eviction=Eviction(max_rows=12, max_age=6, every=2),
    ),
}  # fmt: skip


def rows_of(model: ClickModel) -> list[tuple]:
    return [item for name in "ab" for item in model.ebc.table(name).row_chunks()]


def assert_same(one: ClickModel, other: ClickModel) -> None:
    assert torch.equal(one.top.weight, other.top.weight)
    for got, want in zip(rows_of(one), rows_of(other), strict=True):
        assert np.array_equal(got[0], want[0])
        assert torch.equal(got[1], want[1])
        assert torch.equal(got[2], want[2])


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    unbroken, first, second = (ClickModel(OPTIONS[name]) for _ in range(3))
    source = list(batches(steps=20))
    for model, part in ((unbroken, source), (first, source[:10])):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        pipeline, steps = TablePipeline(model, optimiser, pause_every=5), iter(part)
        keeper = Checkpointer(tmp_path / "x", model, optimiser) if model is first else None
        for number in range(1, len(part) + 1):
            pipeline.progress(steps)
            if keeper is not None and number % 5 == 0:
                keeper.save(number, step=number)
        pipeline.close()
        if keeper is not None:
            keeper.close()
    optimiser = torch.optim.SGD(second.parameters(), lr=0.1)
    keeper = Checkpointer(tmp_path / "x", second, optimiser)
    assert keeper.load() == {"step": 10}
    assert_same(second, first)
    pipeline, steps = TablePipeline(second, optimiser), iter(source[10:])
    for _ in range(10):
        pipeline.progress(steps)
    assert_same(second, unbroken)


@pytest.mark.parametrize("name", OPTIONS)
def test_files_of_changes_make_the_whole(name: str, tmp_path: Path) -> None:
    model = ClickModel(OPTIONS[name])
    keeper, pipeline, source = RowFiles(model, full_every=3), TablePipeline(model, None), batches()
    pipeline.synchronous = True
    previous, sizes = None, []
    for number in range(5):
        for _ in range(2 if number else 12):
            pipeline.progress(source)
        folder = tmp_path / str(number)
        folder.mkdir()
        sizes.append(keeper.write(folder, previous))
        assert len(list(folder.iterdir())) == 2 * (number % 3 + 1)
        other = ClickModel(OPTIONS[name])
        RowFiles(other).read(folder)
        for got, want in zip(rows_of(other), rows_of(model), strict=True):
            assert np.array_equal(got[0], want[0])
            assert torch.equal(got[1], want[1])
        previous = folder
    if name == "static":
        assert sizes[1] < sizes[0]


def test_rows_in_flight_are_not_saved(tmp_path: Path) -> None:
    model = ClickModel(TableOptions())
    held = model.ebc(next(batches())[0])
    with pytest.raises(JoyError, match="read ahead and not computed"):
        RowFiles(model).write(tmp_path)
    del held


@pytest.mark.parametrize("name", ["static", "dynamic"])
def test_an_export_has_every_row(name: str, tmp_path: Path) -> None:
    model = ClickModel(OPTIONS[name])
    pipeline, source = TablePipeline(model, None, synchronous=True), batches()
    for _ in range(12):
        pipeline.progress(source)
    RowFiles(model).write(tmp_path)
    export_rows(tmp_path, tmp_path / "out")
    found = load_file(tmp_path / "out" / "a.safetensors")
    table = model.ebc.table("a")
    ids = found["ids"].numpy() if name == "dynamic" else np.arange(60)
    assert len(ids) == len(table)
    assert torch.equal(found["weight"], table.read(ids)[0])


def test_a_checkpoint_of_another_optimiser_is_refused(tmp_path: Path) -> None:
    RowFiles(ClickModel(TableOptions(), "adam")).write(tmp_path)
    with pytest.raises(JoyError, match="have optimiser adam, and the table has adagrad"):
        RowFiles(ClickModel(TableOptions(), "adagrad")).read(tmp_path)


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is made: no file system here can be filled without a mount."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    model = ClickModel(TableOptions())
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(JoyError, match=r"could not be written: .*No space left"):
        RowFiles(model).write(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("edges", [(0, 3, 6), (0, 1, 2, 6), (0, 6)])
def test_columns_open_on_another_number_of_processes(
    kind: str, edges: tuple[int, ...], tmp_path: Path
) -> None:
    def cut(*places: int) -> list[Table]:
        pairs = itertools.pairwise(places)
        return [
            Table(TableShape("t", b - a, 20, 0, a, -0.1, 0.1), RowOptimiser(kind)) for a, b in pairs
        ]

    (whole,), parts = cut(0, 6), cut(0, 2, 4, 6)
    ids, gradients = np.arange(0, 20, 3), torch.randn(7, 6)
    for table in (whole, *parts):
        ticket = table.prepare(ids)
        table.bring(ticket)
        first = table.shape.first_column
        table.update(ticket, gradients[:, first : first + table.shape.columns])
    for number, part in enumerate(parts):
        save(tmp_path / file_name("t", number, 0), part, 0, full=True)
    opened = cut(*edges)
    for table in opened:
        take_over(table, merge(tmp_path, "t"))
    rows = [next(iter(table.row_chunks())) for table in opened]
    _, weights, state = next(iter(whole.row_chunks()))
    assert torch.equal(torch.cat([row[1] for row in rows], 1), weights)
    blocks = [row[2].view(20, -1, len(row[1][0])) for row in rows]
    assert torch.equal(torch.cat(blocks, 2).reshape(20, -1), state)


@pytest.mark.parametrize("kind", ["FP32", "FP16", "BF16"])
def test_files_filled_by_chunks_are_plain_safetensors(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 7 rows, two parts of rows, changes on top: the library reads the same."""
    monkeypatch.setattr("joymigrate.run.train.tables.row_files.CHUNK", 7)
    monkeypatch.setattr("joymigrate.run.train.tables.table.CHUNK", 7)
    dtype = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}[kind]
    optimiser = RowOptimiser("adagrad", lr=0.5)
    parts = [
        Table(TableShape("t", 4, 25, first, 0, -0.1, 0.1, dtype), optimiser) for first in (0, 25)
    ]
    for table, first in zip(parts, (0, 25), strict=True):
        for number, ids in enumerate((np.arange(0, 25, 2), np.arange(3, 9))):
            ticket = table.prepare(ids + first)
            table.bring(ticket)
            table.update(ticket, torch.randn(len(ids), 4))
            path = tmp_path / file_name("t", first // 25, number)
            save(path, table, 0 if number == 0 else table.version - 1, full=number == 0)
            table.advance()
            assert load_file(path)["weights"].dtype == dtype
    export_rows(tmp_path, tmp_path / "out")
    found = load_file(tmp_path / "out" / "t.safetensors")["weight"]
    wanted = torch.cat([weights for t in parts for _, weights, _ in t.row_chunks()])
    assert torch.equal(found, wanted.to(dtype))
    whole = Table(TableShape("t", 4, 50, 0, 0, -0.1, 0.1, dtype), optimiser)
    take_over(whole, merge(tmp_path, "t"))
    again = [torch.cat(rows) for rows in zip(*[c[1:] for c in whole.row_chunks()], strict=True)]
    assert torch.equal(again[0], wanted)
    state = torch.cat([state for t in parts for _, _, state in t.row_chunks()])
    assert torch.equal(again[1], state)


def test_opening_and_exporting_hold_a_part_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peak of what numpy allocates: 200,000 rows of 64 numbers are 51 MB; ids and places 8."""
    import tracemalloc

    monkeypatch.setattr("joymigrate.run.train.tables.row_files.CHUNK", 2048)

    rows, columns = 200_000, 64
    table = Table(TableShape("t", columns, rows, 0, 0, -0.1, 0.1), RowOptimiser("sgd"))
    table.load_weights(torch.zeros(rows, columns))
    save(tmp_path / file_name("t", 0, 0), table, 0, full=True)
    tracemalloc.start()
    for _ in merge(tmp_path, "t").chunks():
        pass
    export_rows(tmp_path, tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * rows * columns * 4
