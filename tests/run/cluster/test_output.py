"""A pod's output on disk: whole, in pieces, at places that stay."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from joymigrate.run.cluster.on_ray import output
from joymigrate.run.cluster.on_ray.follow import OutputReader


def test_pieces_put_together_are_the_whole_across_files(tmp_path: Path) -> None:
    made = output.PodOutput(tmp_path, file_bytes=10)
    whole = b"".join(b"line %d\n" % number for number in range(20))
    for at in range(0, len(whole), 7):
        made.write(whole[at : at + 7])
    assert len(output.segments(tmp_path)) > 5
    read = b""
    while (piece := output.read(tmp_path, len(read), 13)).data:
        assert (piece.start, piece.end) == (len(read), len(whole))
        read += piece.data
    assert read == whole
    assert output.tail(tmp_path, 3) == ["line 17", "line 18", "line 19"]
    assert output.tail(tmp_path, 0) == []


def test_the_oldest_goes_first_and_readers_learn_how_much(tmp_path: Path) -> None:
    made = output.PodOutput(tmp_path, file_bytes=10, files=2)
    for number in range(10):
        made.write(b"%09d\n" % number)
    piece = output.read(tmp_path, 0, 1000)
    assert (piece.start, piece.end) == (90, 100)
    assert piece.data == b"000000009\n"


def test_a_second_life_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    output.PodOutput(tmp_path).write(b"one\n")
    again = output.PodOutput(tmp_path)
    again.write(b"two\n")
    assert output.read(tmp_path, 0, 100).data == b"one\ntwo\n"
    assert output.read(tmp_path, 2, 3).data == b"e\nt"


def test_nothing_written_is_nothing_read(tmp_path: Path) -> None:
    assert output.read(tmp_path / "no", 5, 10) == output.OutputPiece(5, b"", 0)
    assert output.tail(tmp_path / "no", 5) == []


@given(st.text(alphabet="ab\r\né", max_size=60), st.integers(1, 7))
def test_lines_are_the_same_however_the_bytes_come(text: str, size: int) -> None:
    reader = OutputReader(None, "j", 1, 0)  # type: ignore[arg-type]
    data, lines = text.encode(), []
    for at in range(0, len(data), size):
        lines += reader._lines(data[at : at + size])
    lines += [reader.rest.rstrip("\r")] if reader.rest.strip("\r") else []
    whole = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert [line for line in lines if line] == [line for line in whole if line]


def test_a_job_s_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    assert output.folder_of(str(tmp_path), "../../etc", 1, 0).parents[2] == tmp_path / "logs"
