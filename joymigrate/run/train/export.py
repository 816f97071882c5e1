"""Writes a checkpoint as a model folder (config, safetensors, tokenizer), in one process.

Works from the checkpoint alone, whatever layout wrote it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train.checkpoint import alone_is_fine
from joymigrate.run.train.checkpoint_store import CheckpointStore
from joymigrate.run.train.run_folder import CHECKPOINTS, RunFolder
from joymigrate.run.train.tables.rowless_state import without_rows
from joymigrate.run.train.tokenizer import end_of_turn


def export(run: RunFolder, target: Path, number: int | None = None, *, force: bool = False) -> Path:
    """Write the newest (or a numbered) checkpoint of a run to `target`; returns it.

    An adapter is written beside its base model's name, as peft does. A folder that has something
    in it is replaced with `force` only, or when it lies in the run's own folder.
    """
    from joymigrate.run.train.assemble import model_of, task_of
    from joymigrate.run.train.tables.row_files import export_rows, has_rows

    check_place(run, target, force)
    job = run.job()
    shelf = CheckpointStore(run.path / CHECKPOINTS)
    chosen = shelf.newest() if number is None else number
    if chosen is None or not shelf.place(chosen).is_dir():
        raise JoyError(
            "no checkpoint to export" if number is None else f"there is no checkpoint {number}",
            where=str(run.path),
            help=f"there are {', '.join(map(str, shelf.numbers())) or 'none'}",
        )
    task = task_of(job)
    model = model_of(job, task)
    load_weights(model, shelf.place(chosen))
    quiet()
    building = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    if job.method.name == "lora" and job.model.path is None:
        model = model.merge_and_unload()  # there is no folder that an adapter could refer to
    if task.tokenizer is not None:
        name_ends(model, task.tokenizer)
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(building)
    else:
        save_plain(model, building)
    if task.tokenizer is not None:
        task.tokenizer.save_pretrained(building)
    if has_rows(shelf.place(chosen)):
        export_rows(shelf.place(chosen), building / "tables")
    if target.exists():
        shutil.rmtree(target)
    os.replace(building, target)
    return target


def check_place(run: RunFolder, target: Path, force: bool) -> None:
    """Keep what the user has at the target."""
    if force or not target.exists() or run.path.resolve() in target.resolve().parents:
        return
    if not target.is_dir() or any(target.iterdir()):
        raise JoyError(
            "there is something at the model's place already",
            where=str(target),
            help="name a new folder with -o, or add --force to replace this one",
        )


def name_ends(model: Any, tokenizer: Any) -> None:
    """Let generation end where a turn of the chat template ends, as the model has learned it."""
    settings = getattr(model, "generation_config", None)
    end = end_of_turn(tokenizer)
    if settings is None or end is None:
        return
    known = settings.eos_token_id
    ends = [known] if isinstance(known, int) else [*(known or ())]
    if end not in ends:
        settings.eos_token_id = [end, *ends]


def load_weights(model: Any, place: Path) -> None:
    """Weights and rows of a checkpoint into a model that lies on the CPU in one piece."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    from joymigrate.run.train.tables.row_files import RowFiles, has_rows

    reader = FileSystemReader(place)
    known = reader.read_metadata().state_dict_metadata
    with without_rows():
        mine = {f"model.{name}": value for name, value in model.state_dict().items()}
    wanted = {name: value for name, value in mine.items() if name in known}
    with alone_is_fine():
        load(wanted, storage_reader=reader, no_dist=True)
    if has_rows(place):
        RowFiles(model).read(place)


def quiet() -> None:
    """No bars of the library's own."""
    from transformers.utils import logging

    disable: Any = logging.disable_progress_bar
    disable()


def save_plain(model: Any, folder: Path) -> None:
    """A model that is not of transformers: its tensors in one file."""
    from safetensors.torch import save_model

    folder.mkdir(parents=True)
    with without_rows():
        save_model(model, str(folder / "model.safetensors"))
