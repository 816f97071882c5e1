"""One run of a program in a copy of its project."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from joymigrate.cli.rewrite import split_command
from joymigrate.errors import JoyError
from joymigrate.model import Patch
from joymigrate.rewrite.prove_run import ProofRunner, import_root, read_output
from tests.ledger.trees import write_tree


def runner(
    project: Path, *command: str, here: Path | None = None, timeout_s: float = 60
) -> ProofRunner:
    """A runner of this Python."""
    return ProofRunner(project, here or project, [sys.executable, *command], timeout_s)


def wait_until_gone(state: Path) -> None:
    """Until a process that was killed is gone, or ended and not yet collected."""
    for _ in range(2400):
        with suppress(FileNotFoundError, ProcessLookupError):
            if state.read_text().rpartition(")")[2].split()[0] not in "ZX":
                time.sleep(0.05)
                continue
        return
    raise AssertionError(f"{state}: still there")


def test_results_are_read_from_what_programs_print() -> None:
    text = (
        "train_loss: 0.5\nLoss=nan\n{'loss': 1.25, 'eval_acc': .9}\nglossary 4, accessor 3\n"
        "Ran 5 tests in 0.1s\nFAILED (failures=1, errors=2)\nFAIL: test_q (m.T)\n"
        "FAILED tests/a.py::test_x - boom\n3 passed, 1 failed in 2s\ntorch.float16\n"
    )
    run = read_output(1, text, frozenset(), ())
    # In the order of words: several processes print in any order.
    assert run.losses == (("Loss", "nan"), ("acc", ".9"), ("loss", "0.5"), ("loss", "1.25"))
    assert set(run.tests) == {
        ("3", "passed"), ("1", "failed"), ("5", "tests"), ("1", "failures"), ("2", "errors"),
    }  # fmt: skip
    for words, passed in (("1 skipped in 1s", 0), ("Ran 3 tests in 1s\nOK (skipped=2)", 1)):
        assert read_output(0, words, frozenset(), ()).passed == passed
    assert run.failing == ("test_q (m.T)", "tests/a.py::test_x")
    other = read_output(1, text.replace("test_x", "test_y"), frozenset(), ())
    assert run.differences(other) == ("failing tests",)


def test_lines_are_held_by_their_numbers_and_not_by_times_and_places() -> None:
    run = read_output(0, "mse=\x1b[32m0.50\x1b[0m on cuda:0\ndtype: float32\n", frozenset(), ())
    assert run.numbers == {("0.50",): 1, ("float32",): 1}
    for others, same in (
        ("mse=0.50 on cpu\ndtype: float32\n", True),
        ("dtype: float32\nsaved to 7\nmse: 0.50 after 3.1s, 0:00:03\n", True),
        ("mse=0.51 on cpu\ndtype: float32\n", False),
        ("mse=0.50\ndtype: float16\n", False),
    ):
        assert (run.differences(read_output(0, others, frozenset(), ())) == ()) is same
    idle = "m.py:12: UserWarning\n<object at 0x7f01>\n 50%|#  | 1/2 [00:01<00:01, 1.0it/s]\n"
    assert not read_output(0, idle, frozenset(), ()).numbers


def test_the_copy_is_run_from_the_folder_that_the_command_was_typed_in(tmp_path: Path) -> None:
    show = b"import os\nprint('acc', 1, os.getcwd())\nopen('made.txt', 'w').close()\n"
    write_tree(tmp_path / "p", {"deep/run.py": show})
    for here, word in ((tmp_path / "p/deep", "run.py"), (tmp_path, "p/deep/run.py")):
        run = runner(tmp_path / "p", word, here=here).run(())
        assert (run.code, run.loaded) == (0, frozenset({"deep/run.py"}))
    assert not (tmp_path / "p/deep/made.txt").exists()


def test_a_copy_holds_what_relative_links_lead_to_and_tells_what_was_read(tmp_path: Path) -> None:
    shown = b"print('acc', open('data/v').read(), open('own').read(), flush=True)\n"
    text = b"import os\n" + shown + b"os._exit(0)\n"
    write_tree(tmp_path, {"p/run.py": text, "p/first": b"1", "p/idle": b"", "shared/v": b"2"})
    (tmp_path / "p/data").symlink_to("../shared")
    (tmp_path / "p/own").symlink_to("first")
    run = runner(tmp_path / "p", "run.py").run(())
    assert (run.losses, run.code) == ((("acc", "2"),), 0)
    assert run.loaded == {"run.py", "first"}


def test_a_run_that_an_edit_keeps_from_ending_differs(tmp_path: Path) -> None:
    write_tree(tmp_path, {"run.py": b"print('acc', 1)\n"})
    edit = Patch(tmp_path / "run.py", b"", b"import time\ntime.sleep(600)\n")
    one = runner(tmp_path, "run.py", timeout_s=3)
    assert "exit code" in one.run(()).differences(one.run([edit]))


def test_a_program_that_reads_input_gets_none(tmp_path: Path) -> None:
    write_tree(tmp_path, {"run.py": b"try:\n    input()\nexcept EOFError:\n    print('acc 1')\n"})
    assert runner(tmp_path, "run.py").run(()).losses == (("acc", "1"),)


@pytest.mark.parametrize("call", ["append", "insert"])
def test_a_project_that_is_installed_in_place_is_run_from_the_copy_or_not_at_all(
    call: str, tmp_path: Path
) -> None:
    place = f"{'0, ' if call == 'insert' else ''}{str(tmp_path / 'lib')!r}"
    text = f"import sys\nsys.path.{call}({place})\nimport pkg.m\n"
    files = {"lib/pkg/__init__.py": b"", "lib/pkg/m.py": b"print('acc', 1)\n"}
    write_tree(tmp_path, {**files, "run.py": text.encode()})
    patch = Patch(tmp_path / "lib/pkg/m.py", b"", b"print('acc', 2)\n")
    run = runner(tmp_path, "run.py").run([patch])
    if call == "append":
        assert (run.losses, run.original) == ((("acc", "2"),), ())
        assert "lib/pkg/m.py" in run.loaded
    else:  # nothing comes before it: told, so that nobody takes it for a proof
        assert run.original == ("lib/pkg/__init__.py", "lib/pkg/m.py")
    assert import_root(tmp_path, "lib/pkg/m.py") == "lib"


def test_a_program_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    text = (
        "import subprocess, sys, time, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\ntime.sleep(600)\n"
    )
    write_tree(tmp_path / "p", {"run.py": text.encode()})
    with pytest.raises(JoyError, match="did not end within 5 s"):
        runner(tmp_path / "p", "run.py", timeout_s=5).run(())
    wait_until_gone(Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat"))


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    write_tree(tmp_path, {"run.py": b""})
    with pytest.raises(JoyError, match="no such program: pyhton"):
        ProofRunner(tmp_path, tmp_path, ["pyhton", "run.py"], 5).run(())


def test_a_long_text_of_a_program_is_no_path(tmp_path: Path) -> None:
    write_tree(tmp_path, {"run.py": b""})
    assert runner(tmp_path, "-c", "print('acc', 1)" + ";" + "x=1;" * 200).run(()).losses == (
        ("acc", "1"),
    )


def test_a_script_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    write_tree(tmp_path, {"run.sh": b"echo acc 1\n"})
    for word, said in (("run.sh", "no such program"), ("./run.sh", "not executable")):
        with pytest.raises(JoyError, match=f"{said}: {word}"):
            ProofRunner(tmp_path, tmp_path, [word], 5).run(())
    (tmp_path / "run.sh").chmod(0o755)
    with pytest.raises(JoyError, match=r"cannot start \./run\.sh: Exec format error"):
        ProofRunner(tmp_path, tmp_path, ["./run.sh"], 5).run(())


def test_words_of_the_command_stand_as_they_were_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["./run.sh", "--to", "http://x//y", "", "tests/", "--", "./z"]
    monkeypatch.setattr(sys, "argv", ["joymigrate", "rewrite", "a", "--prove", "--", *typed])
    words = [Path("a"), *map(Path, typed)]
    assert split_command(words) == ([Path("a")], typed)


def test_what_a_program_leaves_behind_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    """A child that keeps the output open held every run up."""
    text = (
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\nprint('loss 0.5')\n"
    )
    write_tree(tmp_path / "p", {"run.py": text.encode()})
    made = runner(tmp_path / "p", "run.py", timeout_s=300).run(())
    assert (made.code, made.losses) == (0, (("loss", "0.5"),))
    wait_until_gone(Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat"))
