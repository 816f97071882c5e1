"""Programs in children of a server that did nothing but import torch and what most programs use.

The imports take longer than most programs of the tests run. A child of the test process itself
could wait forever: threads that torch started there for earlier tests don't live on in it.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
# The first optimiser of a program imports torch._dynamo, which takes longer than torch itself. A
# package that is not installed is passed over.
SERVER.set_forkserver_preload(
    ["torch._dynamo", "joymigrate.verify.watch", "transformers.models.qwen2.modeling_qwen2"]
)


@dataclass(frozen=True)
class Ended:
    """How one process ended, and what it printed."""

    code: int | None
    out: str
    err: str


def run_program(program: Path, *words: str, cwd: Path | None = None) -> str:
    """What a program prints on stdout, in one process; it has to end well."""
    (ended,) = run_ranks(program, 1, *words, cwd=cwd)
    assert ended.code == 0, ended.err[-4000:]
    return ended.out


def run_ranks(
    program: Path, count: int, *words: str, cwd: Path | None = None, limit: float = 300
) -> list[Ended]:
    """Run a program in `count` processes that know each other as torchrun's do, without torchrun.

    Like torchrun, this process keeps the store in which they meet; `limit` is in seconds, for each.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, str(rank)) for rank in range(count)]
        where = cwd or Path.cwd()
        children = []
        for rank, output in enumerate(outputs):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            environment = {**os.environ, **shared, **own}
            children.append(
                SERVER.Process(target=in_child, args=(program, words, environment, where, output))
            )
        for child in children:
            child.start()
        for child in children:
            child.join(limit)
        for child in children:
            if child.is_alive():
                child.kill()
                child.join()
        return [
            Ended(child.exitcode, *(read(output.with_suffix(end)) for end in (".out", ".err")))
            for child, output in zip(children, outputs, strict=True)
        ]


def read(path: Path) -> str:
    """The text of a file; none where the child did not come so far."""
    return path.read_text() if path.exists() else ""


def in_child(
    program: Path, words: tuple[str, ...], environment: dict[str, str], cwd: Path, output: Path
) -> None:
    """Be `python PROGRAM WORDS`: this process prints into files, also from below Python."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(program), *words]
    sys.path.insert(0, str(program.parent))
    for number, end in ((1, ".out"), (2, ".err")):
        file = os.open(output.with_suffix(end), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
    try:
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
