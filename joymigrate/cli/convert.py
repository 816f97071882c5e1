"""Convert checkpoints between platforms, and TensorFlow's models to PyTorch."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._convert_savedmodel import convert_savedmodel
from joymigrate.cli._groups import group
from joymigrate.cli._output import one_of, talk
from joymigrate.errors import Exit

NEEDS = {"checkpoint": ("extra:torch",), "savedmodel": ("extra:tf",)}
app = group("Convert checkpoints between platforms, and TensorFlow's models to PyTorch.")
app.command("savedmodel")(convert_savedmodel)


@app.command("checkpoint")
def convert_checkpoint(
    source: Path = typer.Argument(..., metavar="CHECKPOINT", help="A file or a folder."),
    output: Path = typer.Option(
        ...,
        "-o",
        "--output",
        metavar="PATH",
        help="model.safetensors: the weights; state.pt: all of it; a folder: all of it, plainly.",
    ),
    form: str = typer.Option(
        "auto", "--format", help="auto, torch, safetensors, plain, dcp, zero or megatron."
    ),
    trust: bool = typer.Option(
        False, "--trust", help="Read files that run code (pickle); only from where you trust."
    ),
    scaler: bool = typer.Option(
        False, "--scaler", help="Add a GradScaler's state made of apex's loss scale."
    ),
    dequantise: bool = typer.Option(
        False, "--dequantise", help="8-bit optimiser states of bitsandbytes as float32."
    ),
) -> int:
    """Read CHECKPOINT on the CPU, whatever device wrote it, and write it for another platform.

    Reads torch files, safetensors, folders of transformers, accelerate and torchtune, DeepSpeed,
    torch.distributed.checkpoint (FSDP, Lightning, Megatron), Megatron's older files and its own
    plain folder; writes all but parts of ranks (`zero` is DeepSpeed's universal folder). Exit code
    1 when something could not be carried.
    """
    from joymigrate.extras import need
    from joymigrate.run.checkpoint import meaning, read, write

    one_of(form, write.FORMATS, "--format")
    need("torch", "torch", what="converting a checkpoint")
    state, kind, lost = read.read(source, trust=trust)
    state = meaning.dequantise(state) if dequantise else state
    state = meaning.with_scaler(state) if scaler else state
    told = meaning.notes(state)
    wanted = write.format_of(output, form)
    lost = [*lost, *write.write(state, output, wanted)]
    talk([f"{source} ({kind}) → {output} ({wanted})"])
    talk([f"carried as it is: {line}" for line in told])
    talk([f"not carried: {line}" for line in lost])
    return Exit.FOUND if lost else Exit.OK
