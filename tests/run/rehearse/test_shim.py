"""The simulated runtime: what it must offer, and how it is built."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.rehearse import build, shim, symbols

SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0")
SYSTEM += ("libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
# The interpreter's own, and what the loader looks up in thread-local and profiling code.
LOADERS = ("Py", "_Py", "_ITM_", "__gmon_start__", "_ZTH", "__cxa_finalize")


def system_libraries() -> list[Path]:
    folders = [Path("/lib"), Path("/lib64"), Path("/usr/lib"), Path("/usr/lib64")]
    folders += list(Path("/lib").glob("*-linux-gnu"))
    found = {name: f / name for f in folders for name in SYSTEM if (f / name).is_file()}
    return list(found.values())


@pytest.mark.compiler
def test_the_wheel_needs_no_symbol_that_nobody_offers() -> None:
    import importlib.util

    package = build.find_package()
    folder = build.build(package)
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    offered: set[str] = set()
    for path in [
        *sorted((Path(torch.origin).parent / "lib").glob("*.so*")),
        *folder.glob("*.so"),
        *package.libraries(),
        *system_libraries(),
    ]:
        offered |= symbols.read_library(path).defined
    for path in package.libraries():
        missing = symbols.read_library(path).undefined - offered
        assert not {name for name in missing if not name.startswith(LOADERS)}, path.name


def test_the_kernels_of_the_wheel_are_found_by_name() -> None:
    kernels = symbols.chip_kernels(build.find_package().main_library)
    assert len(kernels) > 900
    assert {"aclnnMm", "aclnnFlashAttentionScore", "aclnnGelu"} <= set(kernels)


def test_without_a_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("JOYMIGRATE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(JoyError) as caught:
        build.build(build.find_package())
    assert "apt-get install gcc libc6-dev" in str(caught.value)
    assert "yum install gcc" in str(caught.value)
    assert not list((tmp_path / "cache" / "rehearse").glob("[!.]*"))


def test_a_failing_compiler_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("JOYMIGRATE_CACHE", str(tmp_path))
    with pytest.raises(JoyError, match="compiler failed"):
        build.build(build.find_package())
    assert [path.name for path in (tmp_path / "rehearse").iterdir()] == [".lock"]


def _build(cache: str) -> str:
    os.environ["JOYMIGRATE_CACHE"] = cache
    return str(build.build(build.find_package()))


@pytest.mark.compiler
def test_processes_that_start_together_share_one_build(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        folders = set(pool.map(_build, [str(tmp_path)] * 3))
    assert len(folders) == 1
    libraries = {path.name for path in Path(folders.pop()).iterdir()}
    assert {"libascendcl.so", "libhccl.so", "libopapi.so"} <= libraries
    assert not list((tmp_path / "rehearse").glob(".build-*"))


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("steps", "crossed"),
    [
        ("0send 1send 0receive 1receive", 1),
        ("0send 1receive 1send 0receive", 0),
        ("0receive 0send 1send 1receive", 0),
        ("0start 0send 0receive 0end 1start 1send 1receive 1end", 0),
    ],
)
def test_sends_that_both_stand_before_their_receives_are_counted(steps: str, crossed: int) -> None:
    runtime = ctypes.CDLL(str(build.build(build.find_package()) / shim.RUNTIME))
    ranks, data = (ctypes.c_void_p * 2)(), ctypes.create_string_buffer(8)
    assert runtime.HcclCommInitAll(2, (ctypes.c_int32 * 2)(0, 1), ranks) == 0
    calls = {"send": runtime.HcclSend, "receive": runtime.HcclRecv}
    batches = {"start": runtime.HcclGroupStart, "end": runtime.HcclGroupEnd}
    for rank, what in ((int(step[0]), step[1:]) for step in steps.split()):
        if what in batches:
            assert batches[what]() == 0
            continue
        handle = ctypes.c_void_p(ranks[rank])
        assert calls[what](data, ctypes.c_uint64(2), 4, 1 - rank, handle, None) == 0
    text = ctypes.create_string_buffer(1 << 16)
    runtime.joy_groups(text, ctypes.c_size_t(len(text)))
    newest = text.value.decode().splitlines()[:2]
    assert sum(int(line.split()[-1]) for line in newest) == crossed


@pytest.mark.parametrize(
    ("asked", "seen"),
    [(None, 8), ("", 8), ("0", 1), ("2,5,7", 3), ("0,1,9", 2), ("3,1", 1), ("x", 0), ("²", 0)],
)
def test_a_process_sees_the_devices_that_are_listed(
    asked: str | None, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(shim.VISIBLE, raising=False)
    if asked is not None:
        monkeypatch.setenv(shim.VISIBLE, asked)
    assert shim.visible(8) == seen
