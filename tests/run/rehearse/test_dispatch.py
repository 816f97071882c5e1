"""The package's kernels stay callable under ours, also where torch can't hand them out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.run.rehearse import build

pytestmark = [pytest.mark.compiler, pytest.mark.slow]

PROGRAM = """
import sys, threading
from pathlib import Path
import torch
from joymigrate.run.rehearse.dispatch import Dispatcher

if hasattr(torch.library, "get_kernel"):
    del torch.library.get_kernel  # as in torch before 2.9
library = torch.library.Library("joytest", "DEF")
library.define("twice(Tensor x, int times=2) -> Tensor")
vendor = torch.library.Library("joytest", "IMPL")
vendor.impl("twice", lambda x, times=2: x * times, "PrivateUse1")
dispatcher = Dispatcher(Path(sys.argv[1]))
theirs = dispatcher.kernel("joytest::twice")
keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
op = torch.ops.joytest.twice.default


def ours(x, times=2):
    if x.sum() < 0:
        return op.redispatch(keys, -x, times)  # ours again, and not theirs
    return -theirs.call_boxed(keys, x, times=times)

dispatcher.put("joytest::twice", ours)
one = torch.ones(3)
assert op.redispatch(keys, one).tolist() == [-2.0] * 3
assert op.redispatch(keys, -one, 5).tolist() == [-5.0] * 3
try:
    theirs.call_boxed(keys, "no tensor")
except RuntimeError:
    pass
assert op.redispatch(keys, one).tolist() == [-2.0] * 3  # what was refused is not still asked for
wrong = []

def many():
    for _ in range(300):
        if op.redispatch(keys, one).tolist() != [-2.0] * 3:
            wrong.append(1)
        if theirs.call_boxed(keys, one).tolist() != [2.0] * 3:
            wrong.append(2)

threads = [threading.Thread(target=many) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not wrong, wrong
assert dispatcher.kernel("joytest::nothing") is None
print("kept")
"""


def test_both_kernels_answer_from_several_threads(tmp_path: Path) -> None:
    build.compile_switch(tmp_path / build.SWITCH)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "kept\n", done.stderr[-3000:]
