"""Which rewritten statements a program ran: the places, the watch, the words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from joymigrate.journey import places
from joymigrate.launching import START
from joymigrate.report.journey.reach import share
from joymigrate.report.journey_text import not_reached
from joymigrate.run.rehearse import reach

OLD = b'''"""Text."""
import torch


def f(
    x=1,
):
    if torch.cuda.is_available():
        x = x.cuda()
    return x


@torch.no_grad()
def g(x):
    return x.to("cuda")
'''
NEW = (
    OLD.replace(b"import torch\n", b"import torch\nimport torch_npu\n")
    .replace(b"torch.cuda.is", b"torch.npu.is")
    .replace(b"x.cuda()", b"x.npu()")
    .replace(b'"cuda"', b'"npu"')
)


def found() -> list[places.ChangedLines]:
    return places.find_changes("a.py", OLD, NEW) or []


def test_a_place_is_a_statement_and_of_a_compound_one_its_head() -> None:
    assert [(one.first, one.last, one.text) for one in found()] == [
        (9, 9, "if torch.npu.is_available():"),
        (10, 10, "x = x.npu()"),
        (16, 16, 'return x.to("npu")'),
    ]


def test_an_import_of_the_rewrite_is_no_place_and_a_rewritten_one_is() -> None:
    old, new = b"from torch.cuda import Event\nx = 1\n", b"from torch.npu import Event\nx = 1\n"
    assert [one.first for one in places.find_changes("a.py", old, new) or ()] == [1]
    assert places.find_changes("a.py", b"x = 1\n", b"import torch_npu\nx = 1\n") == []


def test_text_and_comments_are_no_places() -> None:
    old, new = b'"""For cuda."""\n# cuda\nx = 1\n', b'"""For npu."""\n# npu\nx = 1\n'
    assert places.find_changes("a.py", old, new) == []


HANDLED = b"""
try:
    train()
except (
    ValueError,
    torch.cuda.OutOfMemoryError,
):
    batch //= 2
match device:
    case "cpu":
        name = "cuda"
    case "cuda":
        pass
"""


def test_handlers_and_cases_are_places_of_their_own() -> None:
    rows = places.find_changes("a.py", HANDLED, HANDLED.replace(b"cuda", b"npu")) or []
    assert [(one.first, one.last) for one in rows] == [(4, 7), (11, 11), (12, 12)]
    lines = places.ChangedPlaces(tuple(rows), ()).lines(Path("/"))["/a.py"]
    assert lines[11] != lines[12]


def test_what_this_python_cannot_read_is_not_followed() -> None:
    assert places.find_changes("a.py", b"x = 1\n", b"x = = 2\n") is None
    assert places.find_changes("run.sh", b"x=1\n", b"x=2\n") is None


PROGRAM = """
import multiprocessing
import threading


def worker():
    return (
        "in a process"
    )


def other():
    return "in a thread"


def never():
    return "never"


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    process = context.Process(target=worker)
    process.start()
    process.join()
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
"""


def test_all_processes_and_threads_are_watched(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    rows = [places.ChangedLines("program.py", *lines, "") for lines in ((7, 9), (13, 13), (17, 17))]
    every = places.ChangedPlaces(tuple(rows), ("run.sh",))
    reach.ask(tmp_path / "reached", every.lines(tmp_path))
    path = os.pathsep.join([str(START), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, reach.ENVIRONMENT: str(tmp_path / "reached"), "PYTHONPATH": path}
    subprocess.run([sys.executable, program.name], cwd=tmp_path, env=environment, check=True)
    figures = every.figures(reach.read_reached(tmp_path / "reached"))
    assert (figures["places"], figures["places_run"]) == (3, 2)
    assert figures["not_run"] == [{"path": "program.py", "line": 17, "text": ""}]
    assert figures["not_python"] == ["run.sh"]


GONE = """
import os
import tempfile

folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
names = {}
exec(compile("def f(): return 1", "made", "exec"), names)
assert names["f"]() == 1
import shutil
shutil.rmtree(os.environ["JOYMIGRATE_REACH"])
print("the end")
"""


def test_a_watch_that_can_note_nothing_leaves_the_program_alone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(GONE, encoding="utf-8")
    reach.ask(tmp_path / "reached", {str(program): {9: 0, 13: 1}})
    path = os.pathsep.join([str(START), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, reach.ENVIRONMENT: str(tmp_path / "reached"), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True)
    assert done.stdout == b"the end\n", done.stderr


def test_the_verdict_says_that_not_all_of_it_ran() -> None:
    figures = {
        "places": 7,
        "places_run": 4,
        "not_run": [{"path": "eval.py", "line": 3, "text": "m.npu()"}],
        "not_python": [],
    }
    journey = [{"name": "rehearse", "figures": figures}]
    document = {"verdict": "pass", "entry": ["python", "train.py"], "journey": journey}
    assert share(document) == "4 of 7 rewritten statements ran"
    text = "\n".join(not_reached(document))
    assert "`python train.py` (3 statements)" in text
    assert "eval.py:3  m.npu()" in text
    figures["places_run"] = 7
    assert share(document) == ""
