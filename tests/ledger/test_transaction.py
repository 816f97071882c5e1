"""A tree is old or new: killed at every disk call, failing half-way, on odd files."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.ledger import Change, Ledger, Step, transaction
from tests.ledger.trees import run_and_die, tree_of, write_tree

STEP = Step(kind="rewrite", command="test")
OLD = {"a.py": b"cuda\r\n", "pkg/b.py": b"\xef\xbb\xbfcuda", "gone.py": b"x", "sh/run.sh": b"#!"}
NEW = [
    Change("a.py", b"cuda\r\n", b"npu\r\n"),
    Change("pkg/b.py", b"\xef\xbb\xbfcuda", b"\xef\xbb\xbfnpu"),
    Change("gone.py", b"x", None),
    Change("new/deep/c.py", None, b"made"),
    Change("sh/run.sh", b"#!", b"#!npu"),
]


def project(root: Path) -> Ledger:
    root.mkdir(exist_ok=True)
    write_tree(root, OLD)
    os.chmod(root / "sh/run.sh", 0o750)
    return Ledger(root)


def test_all_files_change_and_one_step_is_recorded(tmp_path: Path) -> None:
    ledger = project(tmp_path)
    step = ledger.apply(NEW, STEP)
    after = tree_of(tmp_path)
    assert {name: data for name, (data, _) in after.items()} == {
        "a.py": b"npu\r\n",
        "pkg/b.py": b"\xef\xbb\xbfnpu",
        "new/deep/c.py": b"made",
        "sh/run.sh": b"#!npu",
    }
    assert after["sh/run.sh"][1] == 0o750
    assert step is not None
    assert [s.id for s in ledger.steps()] == [step.id] == ["0001"]
    assert (tmp_path / ".joymigrate/.gitignore").read_text() == "*\n"
    assert not (tmp_path / ".joymigrate/pending.json").exists()
    assert not (tmp_path / ".joymigrate/stage").exists()


def test_no_changes_record_no_step(tmp_path: Path) -> None:
    ledger = project(tmp_path)
    assert ledger.apply([], STEP) is None
    assert not (tmp_path / ".joymigrate").exists()


def test_killed_before_any_disk_call_the_tree_is_old_or_new(tmp_path: Path) -> None:
    """One process per disk call of the whole change; recovery by the next command."""
    reference = project(tmp_path / "reference")
    old = tree_of(reference.root)
    reference.apply(NEW, STEP)
    new = tree_of(reference.root)
    outcomes = []
    for at_call in range(1, 1000):
        ledger = project(tmp_path / f"p{at_call}")
        died = run_and_die(lambda: ledger.apply(NEW, STEP), at_call)  # noqa: B023
        between = tree_of(ledger.root)
        mixed = {n: v for n, v in between.items() if v not in (old.get(n), new.get(n))}
        assert not mixed, f"half a file at call {at_call}"
        ledger.recover()
        tree = tree_of(ledger.root)
        assert tree in (old, new), f"a mixed tree after call {at_call}"
        outcomes.append(tree == new)
        assert bool(ledger.steps()) == (tree == new), f"ledger and tree differ at call {at_call}"
        # Whatever happened, the project works on: the change goes through, and back.
        if tree == old:
            ledger.apply(NEW, STEP)
        assert tree_of(ledger.root) == new
        assert [step.id for step in ledger.steps()] == ["0001"]
        ledger.rollback()
        assert tree_of(ledger.root) == old
        assert not (ledger.root / "new").exists()
        if not died:
            break
    else:
        pytest.fail("the change never came to its end")
    assert len(outcomes) > 40
    assert outcomes == sorted(outcomes), "once decided, a change is always completed"


@pytest.mark.slow
def test_killed_during_recovery_the_next_recovery_ends_it(tmp_path: Path) -> None:
    start = 0
    for at_call in range(1, 1000):  # the first call at which the change is decided
        ledger = project(tmp_path / f"p{at_call}")
        run_and_die(lambda: ledger.apply(NEW, STEP), at_call)  # noqa: B023
        if (ledger.home / "pending.json").exists():
            start = at_call
            break
    for second in range(1, 200):
        ledger = project(tmp_path / f"q{second}")
        run_and_die(lambda: ledger.apply(NEW, STEP), start)  # noqa: B023
        died = run_and_die(ledger.recover, second)
        ledger.recover()
        assert (ledger.root / "a.py").read_bytes() == b"npu\r\n"
        assert len(ledger.steps()) == 1
        if not died:
            return
    pytest.fail("recovery never came to its end")


def test_a_rename_that_fails_brings_the_old_tree_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = project(tmp_path)
    old = tree_of(tmp_path)
    real = transaction.move_into_place

    def full(staged: Path, target: Path) -> None:
        if target.name == "c.py":
            raise OSError(28, "No space left on device", str(target))
        real(staged, target)

    monkeypatch.setattr(transaction, "move_into_place", full)
    with pytest.raises(JoyError, match="No space left on device"):
        ledger.apply(NEW, STEP)
    assert tree_of(tmp_path) == old
    assert not (tmp_path / "new").exists()
    assert ledger.steps() == []
    assert list((ledger.home / "steps").iterdir()) == []


def test_an_interrupt_half_way_brings_the_old_tree_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = project(tmp_path)
    old = tree_of(tmp_path)
    real = transaction.move_into_place

    def interrupted(staged: Path, target: Path) -> None:
        real(staged, target)
        if target.name == "b.py":
            raise KeyboardInterrupt

    monkeypatch.setattr(transaction, "move_into_place", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ledger.apply(NEW, STEP)
    assert tree_of(tmp_path) == old
    assert ledger.recover() is None


def test_the_watcher_ends_the_change_of_a_killed_process(tmp_path: Path) -> None:
    """No further command is needed: the watcher survives the kill of its whole group."""
    ledger = project(tmp_path / "project")
    driver = """
import os, signal, sys
from pathlib import Path
from joymigrate.ledger import Ledger, transaction
from tests.ledger.test_transaction import NEW, STEP
real = transaction.move_into_place
def put(staged, target):
    real(staged, target)
    os.killpg(0, signal.SIGKILL)
transaction.move_into_place = put
Ledger(Path(sys.argv[1])).apply(NEW, STEP)
"""
    # As a subreaper this process inherits the orphaned watcher and can wait for its end.
    libc = ctypes.CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", driver, str(ledger.root)],
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        assert done.returncode == -signal.SIGKILL
        os.wait()
    finally:
        libc.prctl(36, 0, 0, 0, 0)
    assert (ledger.root / "pkg/b.py").read_bytes() == b"\xef\xbb\xbfnpu"
    assert not (ledger.root / "gone.py").exists()
    assert [step.kind for step in ledger.steps()] == ["rewrite"]
    assert not (ledger.home / "pending.json").exists()


def interrupted(root: Path) -> Ledger:
    """A project whose change died after the first rename."""
    ledger = project(root)

    def act() -> None:
        real = transaction.move_into_place

        def put(staged: Path, target: Path) -> None:
            real(staged, target)
            os.kill(os.getpid(), signal.SIGKILL)

        transaction.move_into_place = put  # type: ignore[assignment]
        ledger.apply(NEW, STEP)

    assert run_and_die(act, 10**9)
    assert (root / "a.py").read_bytes() == b"npu\r\n"
    assert (root / "pkg/b.py").read_bytes() == b"\xef\xbb\xbfcuda"
    return ledger


def test_an_edit_after_the_interruption_is_never_overwritten(tmp_path: Path) -> None:
    ledger = interrupted(tmp_path)
    (tmp_path / "pkg/b.py").write_bytes(b"edited by hand")
    before = tree_of(tmp_path)
    with pytest.raises(JoyError, match=r"edited since: pkg/b\.py"):
        ledger.recover()
    assert tree_of(tmp_path) == before


def test_a_lost_staged_file_is_named_and_force_goes_back(tmp_path: Path) -> None:
    ledger = interrupted(tmp_path)
    for staged in (ledger.home / "stage").iterdir():
        staged.unlink()
    with pytest.raises(JoyError, match=r"the new content of pkg/b\.py is lost"):
        ledger.recover()
    ledger.rollback(force=True)
    assert {n: d for n, (d, _) in tree_of(tmp_path).items()} == OLD


def test_force_takes_the_interrupted_change_back_and_keeps_the_edit(tmp_path: Path) -> None:
    ledger = interrupted(tmp_path)
    (tmp_path / "pkg/b.py").write_bytes(b"edited by hand")
    done = ledger.rollback(force=True)
    assert {n: d for n, (d, _) in tree_of(tmp_path).items()} == OLD
    assert done.recovered is not None
    assert not done.recovered.completed
    assert (ledger.home / "edits/pkg/b.py").read_bytes() == b"edited by hand"
    assert ledger.steps() == []


def test_a_file_changed_since_it_was_read_stops_everything(tmp_path: Path) -> None:
    ledger = project(tmp_path)
    (tmp_path / "pkg/b.py").write_bytes(b"edited meanwhile")
    before = tree_of(tmp_path)
    with pytest.raises(JoyError, match="has changed since it was read"):
        ledger.apply(NEW, STEP)
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Change("absent.py", b"x", b"y"), "is gone"),
        (Change("a.py", None, b"y"), "exists now"),
    ],
)
def test_a_file_that_came_or_went_stops_everything(
    tmp_path: Path, change: Change, message: str
) -> None:
    ledger = project(tmp_path)
    with pytest.raises(JoyError, match=message):
        ledger.apply([*NEW[1:3], change], STEP)
    assert tree_of(tmp_path)["gone.py"][0] == b"x"


def test_a_target_that_became_a_link_is_refused(tmp_path: Path) -> None:
    ledger = project(tmp_path)
    (tmp_path / "a.py").unlink()
    (tmp_path / "a.py").symlink_to("gone.py")
    with pytest.raises(JoyError, match="not a regular file"):
        ledger.apply(NEW, STEP)
    assert (tmp_path / "a.py").is_symlink()


def test_a_read_only_folder_is_one_clear_error_and_nothing_is_written(tmp_path: Path) -> None:
    """As an ordinary user: root may write everywhere."""
    ledger = project(tmp_path / "project")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/") and len(folder.parts) > 2:
            os.chmod(folder, 0o755)
    for path in (ledger.root, *ledger.root.rglob("*")):
        os.chown(path, 65534, 65534) if os.getuid() == 0 else None
    os.chmod(ledger.root / "pkg", 0o555)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            try:
                ledger.apply(NEW, STEP)
            except JoyError as error:
                os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    message = os.read(reading, 4096).decode()
    os.close(reading)
    os.chmod(ledger.root / "pkg", 0o755)
    assert "cannot write: it is read-only" in message
    assert f"at: {ledger.root / 'pkg'}" in message
    assert "-o DIR" in message
    assert {n: d for n, (d, _) in tree_of(ledger.root).items()} == OLD


def test_another_file_system_is_written_through_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = project(tmp_path)
    real = os.replace

    def across(source: Path, target: Path) -> None:
        if Path(source).parent.name == "stage":
            raise OSError(18, "Invalid cross-device link")
        real(source, target)

    monkeypatch.setattr(os, "replace", across)
    ledger.apply(NEW, STEP)
    assert (tmp_path / "a.py").read_bytes() == b"npu\r\n"
    assert tree_of(tmp_path)["sh/run.sh"] == (b"#!npu", 0o750)
    assert not [name for name in tree_of(tmp_path) if name.endswith("joymigrate-tmp")]


def test_two_processes_write_one_after_the_other(tmp_path: Path) -> None:
    ledger = project(tmp_path)
    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            try:
                ledger.apply([Change(f"made{number}.py", None, b"x")], STEP)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    assert [step.id for step in ledger.steps()] == [f"{n:04d}" for n in range(1, 9)]
    assert {step.outputs[0].path for step in ledger.steps()} == {f"made{n}.py" for n in range(8)}


def test_the_step_names_the_hashes_of_its_files(tmp_path: Path) -> None:
    ledger = project(tmp_path)
    ledger.apply(NEW, STEP)
    line = json.loads((ledger.home / "ledger.jsonl").read_text())
    assert line["schema"] == "joymigrate.step/1"
    assert {item["path"] for item in line["inputs"]} == set(OLD)
    outputs = {item["path"]: item["sha256"] for item in line["outputs"]}
    assert outputs["gone.py"] is None
    assert len(outputs["new/deep/c.py"]) == 64


names = st.sampled_from(["a", "b/c", "b/d", "e/f/g", "名字", "with space"])
trees = st.dictionaries(names, st.binary(max_size=60), max_size=6)
modes = st.sampled_from([0o644, 0o600, 0o755, 0o664])


@settings(max_examples=15, deadline=None)
@given(old=trees, new=trees, mode=modes)
def test_rollback_restores_any_tree_from_any_change(
    tmp_path_factory: pytest.TempPathFactory,
    old: dict[str, bytes],
    new: dict[str, bytes],
    mode: int,
) -> None:
    root = tmp_path_factory.mktemp("tree")
    write_tree(root, old)
    for name in old:
        os.chmod(root / name, mode)
    first = tree_of(root)
    folders = {p for p in root.rglob("*") if p.is_dir()}
    ledger = Ledger(root)
    changes = [
        Change(name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    ledger.apply(changes, STEP)
    assert {n: d for n, (d, _) in tree_of(root).items()} == new
    ledger.rollback()
    assert tree_of(root) == first
    now = {p for p in root.rglob("*") if p.is_dir() and ".joymigrate" not in p.parts}
    assert now == folders
