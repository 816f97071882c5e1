"""Tries a family on two processes: DDP, FSDP2, tensor parallel, pipeline stages.

As a program (`python -m joymigrate.run.train.family_layouts KIND FAMILY OUT`, under torchrun) it is
one of the two processes. A layout counts when its step's loss is that of one process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from joymigrate.device import leave_group
from joymigrate.run.train import families
from joymigrate.run.train.families import ModelFamily

LAYOUTS = {"ddp": {"dp": 2}, "fsdp": {"fsdp": 2}, "tp": {"tp": 2}, "pp": {"pp": 2}}
NEAR = 1e-4  # relative: float32 sums in another order
SECONDS = 240
Tell = Callable[[str], None]


def survey(found: Sequence[ModelFamily], tell: Tell) -> list[ModelFamily]:
    """`found` with the layouts that work, for language models that step here; keeps the result."""
    known = families.recall_verified()
    made = []
    for one in found:
        key = f"{one.task}/{one.family}"
        tried = known.get(key, {}).get("layouts") or one.task != "llm" or one.step != "pass"
        if not tried:
            tell(f"layouts of {one.family}")
            names, reasons = attempt(one)
            why = "; ".join(f"{name}: {text}" for name, text in reasons.items())
            one = dataclasses.replace(one, layouts=names, reason=why or None)
            known[key] = dataclasses.asdict(one)
            families.remember(known)
        made.append(one)
    return made


def attempt(one: ModelFamily) -> tuple[list[str], dict[str, str]]:
    """Layouts that work, and why the others do not."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "joymigrate.run.train.family_layouts", one.task, one.family, str(out)),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        try:
            subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS)
            told = json.loads(out.read_text())
        except (subprocess.TimeoutExpired, OSError, ValueError):
            reached = json.loads(out.read_text()) if out.is_file() else {}
            missing = [name for name in LAYOUTS if name not in reached]
            told = {**reached, **dict.fromkeys(missing, "the processes ended or hung")}
    return [n for n, why in told.items() if why is None], {n: w for n, w in told.items() if w}


def main(kind: str, family: str, out: Path) -> None:
    """One process: every layout in turn; the first rank writes what came of it after each."""
    from joymigrate.chips import hide_driverless
    from joymigrate.device import open_device
    from joymigrate.run.train import group

    hide_driverless()
    device = open_device(None)
    group.open_group(device)
    alone = second_loss(family, None, device)
    told: dict[str, str | None] = {}
    for name, sizes in LAYOUTS.items():
        why: str | None = None
        try:
            loss = second_loss(family, sizes, device)
            if abs(loss - alone) > NEAR * max(1.0, abs(alone)):
                why = f"loss {loss:.6f}, on one process {alone:.6f}"
        except Exception as error:  # third-party code of any kind: its words are the reason
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        told[name] = why
        if group.rank() == 0:
            out.write_text(json.dumps(told))
    leave_group()


def second_loss(family: str, sizes: dict[str, int] | None, device: Any) -> float:
    """The mean loss of the second step: what the first one's gradients changed shows in it."""
    import torch
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM

    from joymigrate.run.train import group, shrink
    from joymigrate.run.train.feed import RankShare
    from joymigrate.run.train.layout import Layout
    from joymigrate.run.train.parallel import lay_out
    from joymigrate.run.train.runner import runner_for
    from joymigrate.run.train.tasks import TaskContext
    from joymigrate.run.train.tasks.pretrain import Pretrain

    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(shrink.tiny(family)).float().train()
    layout = Layout(**(sizes or {}))
    ids = torch.randint(4, 400, (4, 16), generator=torch.Generator().manual_seed(1))
    places = torch.arange(16).expand(4, -1).contiguous()
    laid = lay_out(model, layout, device, group.mesh_of(device, layout))
    passes = 2 if layout.pp > 1 else 1
    runner = runner_for(laid, Pretrain(TaskContext(tokenizer=None)), passes)
    mine = ids.chunk(layout.data_ranks)[group.rank() if layout.data_ranks > 1 else 0]
    parts = mine.chunk(passes)
    batches = tuple(
        {"input_ids": p, "labels": p.clone(), "position_ids": places[: len(p)]} for p in parts
    )
    portion = RankShare(0, batches, float(4 * 15), 64, ())
    parameters = [p for p in laid.model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(parameters, lr=0.1, foreach=False)
    total = torch.zeros(())
    for _ in range(2):
        optimiser.zero_grad()
        total = runner.step(portion, 1.0).detach().float()
        optimiser.step()
    if layout.data_ranks > 1 or layout.pp > 1:
        dist.all_reduce(total)
    return float(total) / portion.weight


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
