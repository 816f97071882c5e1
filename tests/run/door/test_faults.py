"""Whose an error is that a program meets behind the door: never the program's where ours broke."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from joymigrate import attach  # noqa: E402
from joymigrate.blame.exceptions import from_document  # noqa: E402
from joymigrate.blame.judge import judge  # noqa: E402
from joymigrate.blame.program import Program  # noqa: E402
from joymigrate.blame.stop import FrameOwner, Stop, StopEvidence  # noqa: E402
from joymigrate.blame.watch import describe_chain  # noqa: E402
from joymigrate.run.door import mode, notes, streams  # noqa: E402
from joymigrate.run.door.answers import BuildVersions, Properties  # noqa: E402

EVERY = """
import torch
x = torch.ones(2, 2, device="cuda")
y = torch.ones(2, 2).to("cuda").cuda().type(torch.FloatTensor).type_as(x)
z = (x + y) @ x
torch.max(z, 0)
z.cpu().numpy()
torch.nn.Linear(2, 2).to(0)
"""
# What mode.py calls by name: each is taken away once.
PARTS = (
    "translate", "compute", "settle", "tensors_in", "find_card", "card_of", "mark", "holder",
    "move", "put", "name_number", "refuse_mixed", "table", "notes", "owner_of", "cards",
)  # fmt: skip


def stop_of(text: str, folder: Path) -> Stop | None:
    """Why a program stops that runs behind the door; None where it ends well."""
    file = folder / "train.py"
    file.write_text(text)
    try:
        with mode.Door():
            exec(compile(text, str(file), "exec"), {"properties": Properties({"name": "A100"}),
                                                    "event": streams.DoorEvent()})  # fmt: skip
    except Exception as error:
        chain = from_document(list(describe_chain(error)))
        return judge(StopEvidence(Program(folder), chain, on_chip=False))
    return None


def test_the_program_that_uses_every_part_ends_well(tmp_path: Path) -> None:
    assert stop_of(EVERY, tmp_path) is None


@pytest.mark.parametrize("part", PARTS)
def test_a_broken_part_of_the_door_is_not_put_on_the_program(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode, part, None)
    stop = stop_of(EVERY, tmp_path)
    assert stop is not None
    assert stop.whose is FrameOwner.SIMULATION, stop


@pytest.mark.parametrize("text", ["properties.l3_size", "event.external", "event.ipc_handle()"])
def test_what_a_stand_in_lacks_is_not_put_on_the_program(text: str, tmp_path: Path) -> None:
    stop = stop_of(text, tmp_path)
    assert stop is not None
    assert stop.whose is FrameOwner.SIMULATION, stop


def test_a_stand_in_can_be_asked_for_what_it_lacks() -> None:
    assert not hasattr(Properties({}), "l3_size")
    assert issubclass(streams.DoorStream, notes.StandIn)


@pytest.mark.parametrize(
    ("line", "whose"),
    [
        ('torch.ones(2, device="cuda") + torch.ones(2)', FrameOwner.PROGRAM),
        ('torch.ones(2, device="cuda").numpy()', FrameOwner.PROGRAM),
        ('torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")', FrameOwner.PROGRAM),
        ('torch.ones(2, device="cuda").sum(dims=0)', FrameOwner.PROGRAM),
        ('torch.ones(2, device="cuda").add("1")', FrameOwner.PROGRAM),
        ('torch.nn.functional.cross_entropy(torch.ones(2, device="cuda"))', FrameOwner.PROGRAM),
        ("torch.ones(2).cuda(7)", FrameOwner.ENVIRONMENT),
    ],
)
def test_what_a_card_would_refuse_too_is_not_ours(
    line: str, whose: FrameOwner, tmp_path: Path
) -> None:
    stop = stop_of(f"import torch\n{line}\n", tmp_path)
    assert stop is not None
    assert (stop.whose, stop.line) == (whose, "train.py:2"), stop


def test_a_package_for_another_cuda_is_imported_and_the_program_hears_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "vision"
    package.mkdir(parents=True)
    (package / "extension.py").write_text(
        "def check():\n"
        "    from torch.version import cuda\n"
        "    if cuda is not None and cuda != '13.0':\n"
        "        raise RuntimeError('compiled with different CUDA versions')\n"
        "    return cuda\n"
        "heard = check()\n"
    )
    (package / "__init__.py").write_text("from vision.extension import check, heard\n")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delattr(torch.version, "cuda")
    monkeypatch.setattr(torch.version, "__class__", BuildVersions)
    code = "import torch, vision\nfound = vision.heard, vision.check, torch.version.cuda"
    names: dict[str, object] = {}
    exec(compile(code, str(tmp_path / "train.py"), "exec"), names)
    heard, check, told = names["found"]  # type: ignore[misc]
    assert (heard, told) == (None, "12.4")
    with pytest.raises(RuntimeError):  # behind its import it is one that asks like the program
        check()


@pytest.mark.parametrize(
    ("text", "whose"), [("", FrameOwner.SIMULATION), ("int('x')", FrameOwner.PROGRAM)]
)
def test_what_fails_as_ours_begins_in_an_import_is_not_put_on_the_program(
    text: str, whose: FrameOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_first.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "imported_first", raising=False)
    attach.after_import("imported_first", lambda: torch.device("no device"), who="test")
    stop = stop_of("import imported_first\n", tmp_path)
    assert stop is not None
    assert stop.whose is whose, stop
