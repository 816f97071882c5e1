"""torch_npu in a folder of its own: only rehearsals find it, and it is whole or not there."""

from __future__ import annotations

import multiprocessing
import os
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from joymigrate.cli import _rehearse_setup
from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.launching import START
from joymigrate.run.rehearse import build, releases, session

TORCH = metadata.version("torch").partition("+")[0]


def wheel(folder: Path, version: str) -> Path:
    """A wheel of the package's name with a library in it, as an index would have."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    system = "win_amd64" if os.name == "nt" else f"linux_{os.uname().machine}"
    info = f"torch_npu-{version}.dist-info"
    path = folder / f"torch_npu-{version}-{tag}-{tag}-{system}.whl"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("torch_npu/__init__.py", "")
        file.writestr("torch_npu/lib/libtorch_npu.so", "")
        file.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\n"
        )
        file.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n"
            f"Tag: {tag}-{tag}-{system}\n",
        )
        file.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an index that is a folder of wheels; torch_npu is nowhere else."""
    monkeypatch.setenv("JOYMIGRATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(releases, "installed_version", lambda: None)
    return tmp_path / "wheels"


def test_the_newest_build_for_this_torch_is_taken_and_used_by_rehearsals_alone(
    shelf: Path, tmp_path: Path
) -> None:
    for version in (TORCH, f"{TORCH}.post2", "1.0.0"):
        wheel(shelf, version)
    assert not releases.available()
    before = set(sys.path)
    made = releases.set_up(tell=lambda line: None)
    assert made.version == f"{TORCH}.post2"
    assert build.find_package().folder == made.folder / "torch_npu"
    settings = type("S", (), {"session": tmp_path, "policy": "count"})()
    path = session.environment(settings, {"PYTHONPATH": "mine"})["PYTHONPATH"].split(os.pathsep)
    assert path == [str(START), str(made.folder), "mine"]
    assert set(sys.path) == before
    assert '"sha256"' in (made.folder / releases.ORIGIN).read_text()
    again = releases.set_up(tell=lambda line: pytest.fail(line))
    assert again == made


def test_several_releases_lie_side_by_side_and_only_the_fitting_one_is_chosen(shelf: Path) -> None:
    wheel(shelf, "1.0.0")
    other = releases.set_up("1.0.0", tell=lambda line: None)
    assert releases.list_kept() == [other]
    assert releases.choose() is None
    wheel(shelf, TORCH)
    fitting = releases.set_up(tell=lambda line: None)
    assert releases.list_kept() == [fitting, other]
    assert releases.choose() == fitting


def test_a_package_of_the_environment_that_fits_comes_first(
    shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(shelf, TORCH)
    releases.set_up(tell=lambda line: None)
    monkeypatch.setattr(releases, "installed_version", lambda: TORCH)
    assert releases.choose() is None
    monkeypatch.setattr(releases, "installed_version", lambda: "1.0.0")
    assert releases.choose() is not None


def test_a_wheel_that_is_no_torch_npu_leaves_nothing(shelf: Path) -> None:
    path = wheel(shelf, TORCH)
    with zipfile.ZipFile(path) as file:
        kept = {name: file.read(name) for name in file.namelist() if not name.endswith(".so")}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in kept.items():
            file.writestr(name, data)
    with pytest.raises(JoyError, match="holds no torch_npu"):
        releases.set_up(tell=lambda line: None)
    assert [one.name for one in releases.root().iterdir()] == [".lock"]


def test_a_torch_without_a_release_is_told_which_have_one(shelf: Path) -> None:
    wheel(shelf, "1.0.0")
    with pytest.raises(JoyError, match=f"no torch-npu=={TORCH}") as error:
        releases.set_up(tell=lambda line: None)
    assert "torch 1.0.0" in str(error.value.help)
    assert [one.name for one in releases.root().iterdir()] == [".lock"]


def test_without_network_the_help_says_how_to_bring_the_wheel(shelf: Path) -> None:
    with pytest.raises(JoyError, match="does not answer") as error:
        releases.set_up(tell=lambda line: None)
    assert f"pip download --no-deps 'torch-npu=={TORCH}.*'" in str(error.value.help)


def test_a_wheel_whose_hash_is_another_one_is_refused(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(shelf, TORCH)
    page = tmp_path / "page.html"
    page.write_text(f'<a href="{path.as_uri()}#sha256={"0" * 64}">{path.name}</a>')
    monkeypatch.setenv("PIP_FIND_LINKS", page.as_uri())
    with pytest.raises(JoyError, match="could not install"):
        releases.set_up(tell=lambda line: None)
    assert releases.list_kept() == []


def get(_: int) -> str:
    """In a process of its own."""
    return str(releases.set_up(tell=lambda line: None).folder)


def test_two_that_start_together_get_one_folder(shelf: Path) -> None:
    wheel(shelf, TORCH)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert len(set(pool.map(get, range(2)))) == 1
    assert sorted(one.name for one in releases.root().iterdir()) == [
        ".lock", f"{TORCH}-{releases.tag()}",
    ]  # fmt: skip


def test_nothing_is_downloaded_unasked(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "set_up", lambda *_, **__: pytest.fail("it was"))
    _rehearse_setup.offer(yes=False)  # no terminal here
    monkeypatch.undo()


def test_yes_gets_it(shelf: Path) -> None:
    wheel(shelf, TORCH)
    _rehearse_setup.offer(yes=True)
    assert releases.available()


def test_the_command_lists_shows_and_installs(
    shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(shelf, TORCH)
    assert run(["rehearse", "setup", "--show"]) == 0
    assert f"--target {releases.root()}" in capsys.readouterr().out
    assert run(["rehearse", "setup"]) == 0
    assert f"torch_npu {TORCH} for rehearsals" in capsys.readouterr().out
    assert run(["rehearse", "setup", "--list"]) == 0
    assert capsys.readouterr().out.startswith(TORCH)
    assert run(["rehearse", "setup", "--realease", "1"]) == 2


def test_a_package_for_another_torch_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = releases.installed_version()
    monkeypatch.setenv("JOYMIGRATE_CACHE", str(tmp_path))
    monkeypatch.setattr(releases, "torch_version", lambda: "2.9.1+cpu")
    assert run(["rehearse", "--", "python", "-c", "print('started')"]) == 2
    said = capsys.readouterr()
    first = next(line for line in said.err.splitlines() if line.startswith("error"))
    assert f"torch_npu {own} is made for torch {TORCH}, and this is torch 2.9.1+cpu" in first
    assert "joymigrate rehearse setup" in said.err
    assert "Traceback" not in said.err
    assert "simulated" not in said.err  # no banner: nothing was started
    assert "started" not in said.out


def test_a_program_that_ends_before_the_device_is_not_said_to_be_without_torch(
    rehearse,
) -> None:
    done = rehearse("python", "-c", "raise SystemExit(3)", report=False)
    assert done.code == 3
    assert "stopped: ended with exit code 3" in done.err
    assert "never imported torch" not in done.err
