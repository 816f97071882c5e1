"""Code of ours waits for a package in a process, whatever else waits for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from joymigrate import attach

said = []
def around(load):
    said.append("outer")
    load()
    said.append("outer done")

attach.after_import("arriving", lambda: said.append("recorder"), who="recorder")
attach.after_import("arriving", lambda: said.append("again"), who="recorder")
attach.around_import("arriving", around, who="rehearsal")
assert attach.waits("recorder") and attach.waits("rehearsal") and not attach.waits("nobody")
import arriving
assert arriving.__spec__.loader.get_source("arriving") == "value = 3\\n"
assert arriving.value == 3
attach.after_import("arriving", lambda: said.append("late"), who="late")
sys.modules["absent"] = None
attach.after_import("absent", lambda: said.append("never"), who="never")
print(" ".join(said))
"""

TERMINATED = """
import os, signal, sys
from joymigrate import attach
if sys.argv[1:]:
    signal.signal(signal.SIGTERM, lambda *_: (print("own"), sys.exit(3)))
attach.before_termination(lambda: print("written", flush=True))
os.kill(os.getpid(), signal.SIGTERM)
"""


def run(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=cwd, capture_output=True, text=True
    )


def test_all_who_wait_for_a_package_are_called_once_each(tmp_path: Path) -> None:
    (tmp_path / "arriving.py").write_text("value = 3\n")
    done = run(PROGRAM, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "outer recorder outer done late"


def test_a_terminated_program_is_written_down_first(tmp_path: Path) -> None:
    done = run(TERMINATED, cwd=tmp_path)
    assert done.stdout.strip() == "written"
    assert done.returncode == -15


def test_a_program_that_handles_termination_keeps_doing_so(tmp_path: Path) -> None:
    done = run(TERMINATED, "own", cwd=tmp_path)
    assert (done.stdout.strip(), done.returncode) == ("own", 3)
