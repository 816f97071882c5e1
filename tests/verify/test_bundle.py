"""Bundles: what is damaged, cut short or foreign is refused with the reason."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from joymigrate.errors import JoyError
from joymigrate.verify import crash
from joymigrate.verify.bundle import Bundle, NothingRecorded, open_bundle, pack
from joymigrate.verify.bundle.write import RankWriter, create
from joymigrate.verify.contents import contents, data_in, records_of
from joymigrate.verify.ops.read import LINES, in_bundle
from tests.verify.faults import PROGRAMS
from tests.verify.harness import record


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "base.jmb"
    record(PROGRAMS / "ranking.py", path)
    return path


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(original, tmp_path / "base.jmb"))


def files(bundle: Path) -> list[str]:
    return [f.name for f in sorted((bundle / "rank-0").iterdir())]


def test_it_holds_statistics_tensors_and_no_pickle(bundle: Path) -> None:
    found = open_bundle(bundle)
    assert found.complete
    assert found.rank(0).steps == [0, 1, 2]
    names = files(bundle)
    assert {"forced-0.safetensors", "weights-0.safetensors", "step-0.safetensors"} <= set(names)
    assert all(name.endswith((".json", ".safetensors")) for name in names)


def test_a_record_takes_less_than_400_bytes(bundle: Path) -> None:
    table = open_bundle(bundle).rank(0).table(1)
    size = (bundle / "rank-0" / "step-1.safetensors").stat().st_size
    assert size / len(table) <= 400


def test_a_record_has_the_statistics_of_its_tensor(bundle: Path) -> None:
    assert {r["kind"] for r in records_of(open_bundle(bundle), "tables.0")} >= {"in", "out", "grad"}
    rank = open_bundle(bundle).rank(0)
    table = rank.table(0)
    row = table.place(("ranker:", 0, "in", "0.dense"))
    assert row is not None
    dense = rank.arrays("batches-0.safetensors")
    [value] = [v for v in dense.values() if v.shape == (16, 6)]
    high, low, mean, norm = table.record(row).stats
    assert (high, low) == (value.max(), value.min())
    assert np.allclose([mean, norm], [value.mean(), np.linalg.norm(value)], rtol=1e-5)


@pytest.mark.parametrize("name", ["step-1.safetensors", "forced-0.safetensors", "program.json"])
def test_a_changed_byte_is_refused(bundle: Path, name: str) -> None:
    file = bundle / "rank-0" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(JoyError, match=rf"damaged bundle: .*{name}.*sha256"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", ["manifest.json", "rank-0/manifest.json"])
def test_a_manifest_cut_short_is_refused(bundle: Path, name: str) -> None:
    file = bundle / name
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(JoyError, match="damaged bundle"):
        open_bundle(bundle)


def test_a_truncated_file_is_refused(bundle: Path) -> None:
    file = bundle / "rank-0" / "step-2.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(JoyError, match="100 bytes instead of"):
        open_bundle(bundle)


def test_a_missing_file_is_refused(bundle: Path) -> None:
    (bundle / "rank-0" / "step-0.json").unlink()
    with pytest.raises(JoyError, match=r"step-0.json is missing"):
        open_bundle(bundle)


def test_a_file_that_nobody_recorded_is_refused(bundle: Path) -> None:
    (bundle / "rank-0" / "more.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(JoyError, match=r"rank-0/more.pt is no part of it"):
        open_bundle(bundle)


def test_a_newer_schema_is_refused(bundle: Path) -> None:
    file = bundle / "manifest.json"
    raw = {**json.loads(file.read_text()), "schema": "joymigrate.bundle/9"}
    file.write_text(json.dumps(raw))
    with pytest.raises(JoyError, match=r"joymigrate.bundle/9"):
        open_bundle(bundle)


def test_a_file_outside_of_the_bundle_is_refused(bundle: Path) -> None:
    file = bundle / "manifest.json"
    raw = json.loads(file.read_text())
    raw["files"]["../../secret"] = {"sha256": "0", "bytes": 1}
    file.write_text(json.dumps(raw))
    with pytest.raises(JoyError, match="outside of the bundle"):
        open_bundle(bundle)


def test_other_folders_and_files_are_no_bundles(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="no such bundle"):
        open_bundle(tmp_path / "nothing")
    with pytest.raises(JoyError, match="not a bundle"):
        open_bundle(tmp_path)
    (tmp_path / "x.tar").write_bytes(b"no archive")
    with pytest.raises(JoyError, match="not a bundle"):
        open_bundle(tmp_path / "x.tar")


def test_a_recording_cut_short_is_read_as_far_as_it_was_flushed(bundle: Path) -> None:
    """As a killed program leaves it: the first manifest, and a part of the next step's file."""
    file = bundle / "manifest.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps({"schema": raw["schema"], "complete": False, "command": ["x"]}))
    (bundle / "rank-0" / ".step-3.safetensors.77.part").write_bytes(b"half")
    found = open_bundle(bundle)
    assert not found.complete
    assert found.rank(0).steps == [0, 1, 2]


def test_every_file_of_a_killed_recording_is_its_committed_version(tmp_path: Path) -> None:
    create(tmp_path / "base.jmb", {})
    writer = RankWriter(tmp_path / "base.jmb" / "rank-0", {"rank": 0, "steps": []})
    numbers = {"x": np.arange(3.0)}
    writer.add(LINES, b"{}\n")
    writer.add("x.safetensors", save(numbers))
    writer.commit()
    for name in (LINES, "x.safetensors"):
        writer.add(name, b"next")
        (writer.folder / name).unlink()  # killed before this write
    rank = in_bundle(tmp_path / "base.jmb")
    assert rank.file(LINES).read_bytes() == b"{}\n"
    assert np.array_equal(rank.arrays("x.safetensors")["x"], numbers["x"])


def test_a_packed_bundle_reads_as_the_folder(bundle: Path, tmp_path: Path) -> None:
    pack(bundle, tmp_path / "base.jmb.tar")
    packed, plain = open_bundle(tmp_path / "base.jmb.tar"), open_bundle(bundle)
    assert packed.manifest == plain.manifest
    assert np.array_equal(packed.rank(0).table(0).sketch, plain.rank(0).table(0).sketch)


def test_an_archive_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        tar.add(tmp_path / "x", "../escaped")
    with pytest.raises(JoyError, match=r"holds '\.\./escaped'"):
        open_bundle(tmp_path / "bad.tar")


def test_an_archive_that_grows_without_end_is_refused(tmp_path: Path) -> None:
    """A compressed archive of zeros: 100 MB in 0.4."""
    bomb = tmp_path / "bomb.jmb.tar"
    with tarfile.open(bomb, "w:gz", compresslevel=1) as tar:
        member = tarfile.TarInfo("rank-0/weights-0.safetensors")
        member.size = 100_000_000
        tar.addfile(member, Zeros(member.size))
    with pytest.raises(JoyError, match="unpacks to"):
        open_bundle(bomb)


class Zeros(io.RawIOBase):
    """A file of zeros."""

    def __init__(self, left: int) -> None:
        self.left = left

    def read(self, size: int = -1) -> bytes:
        size = min(self.left, size if size >= 0 else self.left)
        self.left -= size
        return b"\0" * size


def test_a_cut_archive_is_refused(bundle: Path, tmp_path: Path) -> None:
    packed = tmp_path / "b.jmb.tar"
    pack(bundle, packed)
    packed.write_bytes(packed.read_bytes()[:-20_000])
    with pytest.raises(JoyError):
        open_bundle(packed)


@pytest.mark.parametrize("kind", ["xz", "bz2", "gz"])
def test_a_damaged_compressed_archive_is_called_damaged(kind: str, tmp_path: Path) -> None:
    packed = tmp_path / f"b.tar.{kind}"
    with tarfile.open(packed, f"w:{kind}") as tar:
        for number in range(2):
            member = tarfile.TarInfo(f"rank-0/{number}.json")
            member.size = 3_000_000
            tar.addfile(member, io.BytesIO(b"".join(b"%d " % n for n in range(500_000))))
    data = bytearray(packed.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 300] = b"\xff" * 300
    packed.write_bytes(data)
    with pytest.raises(JoyError, match="damaged"):
        open_bundle(packed)


def test_show_tells_which_files_carry_data(bundle: Path) -> None:
    found = {item["file"]: item["holds"] for item in data_in(open_bundle(bundle))}
    assert found["rank-0/batches-0.safetensors"] == "inputs"
    assert found["rank-0/weights-0.safetensors"] == "weights"
    assert contents(open_bundle(bundle))["ranks"][0]["taught"]


def test_statistics_only_keeps_no_tensor(tmp_path: Path) -> None:
    record(PROGRAMS / "ranking.py", tmp_path / "s.jmb", stats_only=True)
    holds = {item["holds"] for item in data_in(open_bundle(tmp_path / "s.jmb"))}
    assert holds == {"statistics", "program", "printed lines"}


def test_reading_and_comparing_need_neither_torch_nor_pandas(bundle: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from joymigrate.cli import main\n"
        "from joymigrate.cli._main import run\n"
        f"code = run(['verify', 'compare', {str(bundle)!r}, {str(bundle)!r}, '-o', '/dev/null'])\n"
        "assert code == 0, code\n"
        "print([m for m in ('torch', 'pandas', 'libcst') if m in sys.modules])"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]", made.stderr


def test_a_full_disk_is_said_with_the_step_that_did_not_fit(tmp_path: Path) -> None:
    for step in (3, 2):
        crash.leave_stop(tmp_path, step, errno.ENOSPC)
    stop = crash.collect_stop(tmp_path)
    assert stop == {"step": 2, "why": "No space left on device"}
    assert list(tmp_path.iterdir()) == []  # each note is a name
    with pytest.raises(NothingRecorded) as caught:
        raise NothingRecorded(tmp_path, {"stopped": stop})
    assert "step 2 could not be written: No space left on device" in caught.value.what
    assert "--budget" in str(caught.value.help)


@pytest.mark.parametrize(
    ("facts", "whole"),
    [({}, True), ({"exit_code": 1}, True), ({"exit_code": 137}, False), ({"stopped": {}}, True),
     ({"stopped": {"step": 1}}, False), ({"complete": False}, False)],
)  # fmt: skip
def test_a_recording_that_was_cut_is_not_complete(facts: dict[str, Any], whole: bool) -> None:
    assert Bundle(Path(), {"complete": True, **facts}, []).complete is whole
