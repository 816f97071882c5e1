"""Files and settings that others read while we write them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from joymigrate import settings
from joymigrate.errors import JoyError
from joymigrate.files import replace_file, write_output


@pytest.mark.parametrize("durable", [False, True])
def test_a_link_stays_one_and_permission_bits_stay(tmp_path: Path, durable: bool) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    replace_file(link, b"new", durable=durable)
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_a_new_file_has_the_bits_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "made", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640


def test_a_failed_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(JoyError, match="No space left"):
        write_output(tmp_path / "kept", b"new")
    assert (tmp_path / "kept").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["kept"]


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="is a folder"):
        write_output(tmp_path, b"")


@dataclass(frozen=True, slots=True)
class Sample:
    folder: Path
    names: tuple[str, ...] = ()
    steps: tuple[int, ...] = (1, 2)
    rates: dict[str, float] = field(default_factory=dict)
    device: str | None = None


def test_settings_arrive_as_they_were_sent(tmp_path: Path) -> None:
    sent = Sample(tmp_path, ("a", "b"), (), {"x": 0.5})
    settings.write(sent, tmp_path / "settings.json")
    assert settings.read(Sample, tmp_path / "settings.json") == sent
