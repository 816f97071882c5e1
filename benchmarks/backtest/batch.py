"""Runs programs one after the other, each in a process of its own that starts with torch loaded.

    python batch.py ENDED.json PROGRAM.py …

Writes per program its process id, exit code and last error: what the rehearsal recorded is found by
the process id. A program ends after two minutes.
"""

from __future__ import annotations

import json
import multiprocessing
import runpy
import sys
import traceback
from pathlib import Path

import torch
import torch_npu  # noqa: F401  loaded once, before the processes part

LIMIT_S = 120.0


def run(path: str) -> None:
    """The program as a script; its error is kept beside it."""
    try:
        runpy.run_path(path, run_name="__main__")
    except BaseException as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        Path(path).with_suffix(".error").write_text(text, encoding="utf-8")
        raise SystemExit(1) from None


def main() -> None:
    """Each program, and how it ended."""
    assert not torch.npu.is_initialized()  # else the children could not use the device
    fork = multiprocessing.get_context("fork")
    ended = {}
    for path in sys.argv[2:]:
        child = fork.Process(target=run, args=(path,))
        child.start()
        child.join(LIMIT_S)
        if child.is_alive():
            child.kill()
            child.join()
        error = Path(path).with_suffix(".error")
        words = error.read_text(encoding="utf-8") if error.is_file() else ""
        ended[Path(path).stem] = {"pid": child.pid, "code": child.exitcode, "error": words}
        Path(sys.argv[1]).write_text(json.dumps(ended), encoding="utf-8")


if __name__ == "__main__":
    main()
