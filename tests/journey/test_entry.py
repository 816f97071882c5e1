"""The entry is one program with its options; what needs a shell, or is not there, is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from joymigrate.cli._main import run
from joymigrate.errors import Exit, JoyError
from joymigrate.journey.entry import read_entry, script_of

Output = pytest.CaptureFixture[str]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("train.py", "run.sh", "pkg/train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        ("python train.py --steps 3", ("python", "train.py", "--steps", "3")),
        ("python -m pkg.train", ("python", "-m", "pkg.train")),
        ("python -u -W ignore pkg/train.py", ("python", "-u", "-W", "ignore", "pkg/train.py")),
        ("bash run.sh 'a b'", ("bash", "run.sh", "a b")),
        ("FOO=1 BAR='x y' python train.py", ("env", "FOO=1", "BAR=x y", "python", "train.py")),
        ("env FOO=1 python train.py", ("env", "FOO=1", "python", "train.py")),
        (
            "torchrun --nproc-per-node 2 train.py",
            ("torchrun", "--nproc-per-node", "2", "train.py"),
        ),
        ("python train.py --name 'a|b' --x=1", ("python", "train.py", "--name", "a|b", "--x=1")),
    ],
)
def test_the_forms_in_which_programs_are_started(
    text: str, words: tuple[str, ...], project: Path
) -> None:
    assert read_entry(text, project) == words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("python train.py | tee log", "'|' is for a shell"),
        ("python train.py > log", "'>' is for a shell"),
        ("cd pkg && python train.py", "'&&' is for a shell"),
        ("python train.py; ls", "';' is for a shell"),
        ("python train.py --data $HOME/data", "filled in by a shell"),
        ("python train.py --n `nproc`", "filled in by a shell"),
        ("python 'train.py", "quotation"),
        ("FOO=1", "starts no program"),
        ("python trian.py", "Did you mean 'train.py'?"),
        ("python deep/run.sh", "Did you mean 'run.sh'?"),
        ("./go.sh", "there is no file './go.sh'"),
        ("no-such-program-here --x", "no program 'no-such-program-here'"),
    ],
)
def test_what_can_not_be_started_is_refused_with_what_to_write(
    text: str, said: str, project: Path
) -> None:
    with pytest.raises(JoyError) as caught:
        read_entry(text, project)
    assert said in str(caught.value)


def test_a_program_named_by_its_module_has_no_script() -> None:
    assert script_of(["python", "-m", "train"]) is None
    assert script_of(["env", "A=1", "python3", "-u", "x.py"]) == "x.py"


@pytest.mark.parametrize("words", [["python", "train.py", "--steps", "3"], ["./run.sh", "a|b $x"]])
def test_a_program_behind_two_dashes_is_the_entry(
    project: Path, capsys: Output, words: list[str]
) -> None:
    plans = []
    for given in (["--entry", shlex.join(words)], ["--", *words]):
        assert run(["migrate", str(project), "--dry-run", *given]) == Exit.OK
        plans.append(capsys.readouterr().out)
    assert plans[0] == plans[1]
    assert f"-- {shlex.join(words)}\n" in plans[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--entry", "bash run.sh", "--", "python", "train.py"], "named twice"),
        (["--"], "no program behind the two dashes"),
        (["python", "train.py", "--steps", "3"], "'python' is one word too many"),
    ],
)
def test_a_program_is_named_once_and_behind_dashes(
    project: Path, capsys: Output, given: list[str], message: str
) -> None:
    assert run(["migrate", str(project), "--dry-run", *given]) == Exit.ERROR
    assert message in capsys.readouterr().err
