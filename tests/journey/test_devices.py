"""How many devices a program is rehearsed on."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from joymigrate.journey.devices import devices_of


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        ("python train.py --use-gpu", 1),
        ("python -m pkg.train", 1),
        ("torchrun --nproc_per_node=2 train.py", 2),
        ("torchrun --nproc-per-node 4 train.py", 4),
        ("python -m torch.distributed.launch --nproc_per_node 3 train.py", 3),
        ("accelerate launch --num_processes 2 train.py", 2),
        ("deepspeed --num_gpus=2 train.py", 2),
        ("mpirun -np 2 python train.py", 2),
        ("env CUDA_VISIBLE_DEVICES=0,1 python train.py", 2),
        ("python train.py --device cuda:3", 4),
        ("python train.py --gpus 2", 2),
        ("torchrun --nproc_per_node=gpu train.py", None),  # as many as there are
        ("bash run.sh", 2),
        ("bash other.sh", None),
        ("python cards.py", 2),
        ("python rewritten.py", 3),
        ("python spawns.py", 4),
        ("python asks.py", 1),  # as many as it finds
    ],
)
def test_as_many_as_the_entry_starts(entry: str, count: int | None, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node=2 train.py\n")
    (tmp_path / "other.sh").write_text('torchrun --nproc_per_node="$GPUS" train.py\n')
    (tmp_path / "cards.py").write_text('a.to("cuda:0"); b.to("cuda:1")  # localhost:29500\n')
    (tmp_path / "rewritten.py").write_text('b.to(f"{jm.device_type()}:2"); c.cuda(1)\n')
    (tmp_path / "spawns.py").write_text("n = 4\nmp.spawn(work, args=(n,), nprocs=n)\n")
    (tmp_path / "asks.py").write_text("mp.spawn(work, (), torch.cuda.device_count())\n")
    assert devices_of(tuple(shlex.split(entry)), tmp_path) == count
