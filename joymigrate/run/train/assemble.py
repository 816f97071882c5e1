"""Puts a job together on this process: data, task, model, optimiser, checkpoints, logs."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from joymigrate import processors
from joymigrate.device import Device
from joymigrate.errors import JoyError
from joymigrate.run.train import build, compress, flops, group, optimise, probes, records, tokenizer
from joymigrate.run.train.checkpoint import Checkpointer
from joymigrate.run.train.data_state import DataPiece, draw, pieces_of
from joymigrate.run.train.feed import BatchFeed, JoinedSamples, StepFeed
from joymigrate.run.train.held_out import held_out_of
from joymigrate.run.train.job import Job, cache_folder, check_warmup, data_files, micro_size
from joymigrate.run.train.logs import TrainingLog
from joymigrate.run.train.loop import LoopParts
from joymigrate.run.train.mixture import MixedOrder
from joymigrate.run.train.models import ModelSource, adapt, unwrap
from joymigrate.run.train.order import SampleOrder
from joymigrate.run.train.parallel import lay_out
from joymigrate.run.train.run_folder import ALIGNMENT, CHECKPOINTS, QUIET, RunFolder
from joymigrate.run.train.runner import runner_for
from joymigrate.run.train.tasks import Task, TaskContext, find
from joymigrate.run.train.tasks.task import SampleSource
from joymigrate.run.train.tokens import open_cache

FLOPS_PER_THREAD = 20e9  # of one pass that are worth a thread: a fifth of a second or so
Tell = Callable[[str], None]


def assemble(job: Job, folder: RunFolder, device: Device, tell: Tell) -> LoopParts:
    """Everything a loop needs. All ranks call it together, after the group is open."""
    rank = group.rank()
    first = rank == 0
    layout = job.layout
    place = layout.place(rank)
    task = task_of(job)
    if layout.cp > 1 and not task.CUTS:
        raise JoyError(
            f"task {job.task.name} does not cut its sequences over processes", where="layout.cp",
            help="task generative does, with hstu",
        )  # fmt: skip
    model = model_of(job, task)
    if task.PACKS:
        probe(job, task, model, folder, tell if first else silent)
    source = source_of(job, task, rank, folder, tell if first else silent)
    steps = source.steps(job)
    mesh = group.mesh_of(device, layout)
    work = flops.work_of(model, job.data.max_length)
    if device.is_cpu:
        threads(work.per_token * job.data.max_length * micro_size(job))
    speed_up(job, folder, model, device, tell if first else None)
    peak, _ = flops.peak_of(device, job.dtype)
    if job.data.schema is not None:
        from joymigrate.run.train.tables.parallel_model import lay_out_tables

        lay_out_tables(
            model, device.at(), layout.world, layout.gradient_ranks, tell if first else silent
        )
    laid = lay_out(model, layout, device, mesh, computed_in(job))
    traffic = compress.attach(laid, job.comm.dtype)
    evaluator = held_out_of(
        job,
        task,
        laid,
        lambda one, piece: samples_of(job, one, piece, tell if first else silent, held=True),
    )
    made = optimise.optimiser(laid.model, job.optimiser, device.type)
    micro = micro_size(job)
    share = job.batch.size // layout.data_ranks
    data_rank = layout.data_rank(rank)
    keeper = Checkpointer(
        folder.path / CHECKPOINTS,
        laid.model,
        made,
        keep=job.checkpoint.keep,
        asynchronous=job.checkpoint.asynchronous,
        trainable_only=job.method.name == "lora",
        tell=tell if first else silent,
    )
    log = None
    if first:
        logging = job.logging
        log = TrainingLog(
            folder.path,
            steps,
            trackers=(*["tensorboard"] * logging.tensorboard, *logging.trackers),
            port=logging.prometheus,
            quiet=bool(os.environ.get(QUIET)),
        )
        folder.report(
            steps=steps,
            parameters=work.parameters,
            flops_per_token=work.per_token,
            flops_convention=flops.CONVENTION,
            samples_in_all=source.samples,
        )
    return LoopParts(
        job=job,
        steps=steps,
        laid=laid,
        runner=runner_for(laid, task, share // micro),
        optimiser=made,
        feed=source.feed,
        keeper=keeper,
        folder=folder,
        work=work,
        peak=None if peak is None else peak * layout.world,
        data_rank=data_rank,
        speaks=place.tp == 0 and place.pp == layout.pp - 1,
        first_rank=first,
        log=log,
        tell=tell if first else silent,
        traffic=traffic,
        updates=task.updates,
        evaluator=evaluator,
    )


def probe(job: Job, task: Task, model: Any, folder: RunFolder, tell: Tell) -> None:
    """Try what the job takes for granted of a language model; packing ends where it leaks."""
    router = probes.check_router(job.model.from_config, model, job.layout.pp)
    for line in (router, probes.check_positions(model, job.data.max_length)):
        if line is not None:
            tell(line)
    words = len(task.tokenizer)
    probes.check_pass(model, words)
    leak = probes.find_leak(model, words) if task.context.packing else None
    if leak is not None:
        unpack(task, folder, leak, tell)
    elif group.rank() == 0:
        folder.report(packing=task.context.packing, packing_off=None)


def unpack(task: Task, folder: RunFolder, reason: str, tell: Tell) -> None:
    """Give each document a row of its own, and say why."""
    task.context = replace(task.context, packing=False)
    tell(f"packing is off, one document a row: {reason}")
    if group.rank() == 0:
        folder.report(packing=False, packing_off=reason)


@dataclass(frozen=True, slots=True)
class AssembledSource:
    """Where the samples come from, and how many there are."""

    samples: int
    feed: StepFeed[Any]
    by_epoch: bool = False  # whether the last step of an epoch is smaller
    again: int = 0  # samples that were seen once more before the data grew

    def steps(self, job: Job) -> int:
        """Optimiser steps of the run."""
        if not self.by_epoch or job.steps is not None:
            steps = steps_of(job, self.samples, self.again)
            check_warmup(job, steps)
            return steps
        ranks = job.layout.data_ranks
        whole, rest = divmod(job.epochs or 1.0, 1.0)
        most = -(-self.samples // ranks)  # rows of the process that has most
        each = -(-most // (job.batch.size // ranks))
        return max(1, int(whole) * each + math.ceil(rest * self.samples / job.batch.size))


def source_of(job: Job, task: Task, rank: int, folder: RunFolder, tell: Tell) -> AssembledSource:
    """The sample engine where the data have a schema of features, else the token cache."""
    layout, micro = job.layout, micro_size(job)
    place = (job.batch.size, micro, layout.data_rank(rank), layout.data_ranks)
    if job.data.schema is not None:
        from joymigrate.run.train.samples import assemble as engine

        feed = engine.feed_of(job, task, *place)
        return AssembledSource(feed.rows.order.rows, feed, by_epoch=True)
    files = data_files(job)
    records.check(files, job.data.format)
    reading = task.identity()
    pieces = group.share(
        lambda: pieces_of(
            files, job.data.format, reading, folder.path / CHECKPOINTS, tell,
            grows=not (job.data.weights or job.data.holdout), memory=cache_folder(job),
            limit=job.data.limit,
        )
    )  # fmt: skip
    parts = pieces[0].by_file() if job.data.weights else pieces[:1]
    first = [samples_of(job, task, one, tell) for one in parts]
    filled = sum(map(len, first))
    if task.PACKS and task.context.packing and filled < job.batch.size:
        few = f"packed, the data fill {filled} of the {job.batch.size} rows of a step"
        unpack(task, folder, few, tell)
        first = [samples_of(job, task, one, silent) for one in parts]
    samples = JoinedSamples([*first, *(samples_of(job, task, one, tell) for one in pieces[1:])])
    if len(samples) < job.batch.size:
        tell(f"a step takes {job.batch.size} samples of {len(samples)}: it sees some twice")
    data = {"reading": reading, "pieces": [piece.document() for piece in pieces]}
    if job.data.weights:
        mixed = MixedOrder([*map(len, first)], job.data.weights, job.seed, job.data.until)
        mixture = BatchFeed(task, samples, mixed, *place, data, job.data.train)
        return AssembledSource(mixed.size, mixture)
    sizes = list(itertools.accumulate(map(len, samples.parts)))
    growth = tuple(zip((piece.position for piece in pieces[1:]), sizes[1:], strict=True))
    order = SampleOrder(sizes[0], job.seed, growth=growth)
    again = max(0, pieces[-1].position - round(sizes[-2] * (job.epochs or 1.0))) if growth else 0
    return AssembledSource(len(samples), BatchFeed(task, samples, order, *place, data), again=again)


def silent(line: str) -> None:
    """Says nothing, on all ranks but the first."""


def task_of(job: Job) -> Task:
    """The job's task with its tokenizer."""
    if job.data.schema is not None:
        from joymigrate.run.train.samples import assemble as engine

        return engine.task_of(job)
    kind = find(job.task.name)
    files = tuple(data_files(job))
    made = None
    if kind.TOKENIZER:
        model = job.path(job.model.path) if job.model.path else None
        template = job.path(job.data.template) if job.data.template else None
        name = job.tokenizer
        if name is not None and name != tokenizer.BYTES:
            name = str(job.path(name))
        made = tokenizer.load(name, model, template)
    return kind(
        TaskContext(
            tokenizer=made,
            max_length=job.data.max_length,
            packing=job.data.packing,
            seed=job.seed,
            fixed_length=job.layout.pp > 1,
            files=files,
            options=job.task.options,
        )
    )


def samples_of(
    job: Job, task: Task, piece: DataPiece, tell: Tell, *, held: bool = False
) -> SampleSource:
    """The samples of a piece, from the token cache; the first process builds it if need be.

    With `data.holdout` those of the records that are trained on, or are `held` out.
    """
    folder = cache_folder(job)
    size, taken, identity = job.data.holdout, None, task.identity()
    if size is not None:
        taken = group.share(lambda: draw(piece, job.data.format, size, job.seed, held=held))
        identity += f" {size} {job.seed} {held}"
    recipe = build.Recipe(
        files=piece.portions,
        fields=task.fields(),
        identity=identity,
        encode=task.encode,
        format=job.data.format,
        digests=piece.digests,
        taken=taken,
    )
    cache = open_cache(folder, recipe, tell)
    for line in build.Losses(**cache.manifest.lost).lines():
        tell(f"of {cache.manifest.records} records: {line}")
    return task.samples(cache)


def steps_of(job: Job, samples: int, again: int = 0) -> int:
    """Optimiser steps of the run; `again` samples were seen once more on the way."""
    if job.steps is not None:
        return job.steps
    steps = (samples * (job.epochs or 1.0) + again) / job.batch.size
    once = job.data.weights and job.data.until == "first"  # then no sample comes twice
    return max(1, math.floor(steps) if once else math.ceil(steps))


def model_of(job: Job, task: Task) -> Any:
    """The model on the CPU, adapted as the method says."""
    master = job.master or job.dtype == "float32"
    known = task.tokenizer
    source = ModelSource(
        path=job.path(job.model.path) if job.model.path else None,
        settings=job.model.from_config,
        dtype="float32" if master else job.dtype,
        attention=job.model.attention,
        seed=job.seed,
        tokens=len(known) if known is not None else None,
        special=special_tokens(known),
    )
    model = task.build(source)
    if job.method.name == "lora":
        model = adapt(model, job.method)
    if job.model.recompute:
        recompute(model)
    task.prepare(model)
    return model


def speed_up(job: Job, folder: RunFolder, model: Any, device: Device, tell: Tell | None) -> None:
    """Replace parts of the model by faster operators, and keep the list beside the run."""
    if job.kernels in ("off", False):
        return
    from joymigrate.run import kernels

    request = job.kernels if isinstance(job.kernels, dict) else None
    report = kernels.apply(
        unwrap(model),
        device.chip or "cpu",
        only=list(request) if request else None,
        request=request,
    )
    if tell is not None:
        report.write(folder.path / ALIGNMENT)
        folder.report(kernels=report.as_dict())
        if report.replaced:
            tell(f"kernels: {len(report.replaced)} modules replaced, see {ALIGNMENT}")


def recompute(model: Any) -> None:
    """Forget activations after the forward pass and compute them again in the backward pass."""
    if not hasattr(model, "gradient_checkpointing_enable"):
        raise JoyError(
            f"{type(model).__name__} cannot recompute activations", where="model.recompute"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    if hasattr(model, "enable_input_require_grads"):
        model.enable_input_require_grads()


def special_tokens(known: Any) -> dict[str, int | None]:
    """Token numbers that a new configuration takes from its tokenizer."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    return {name: getattr(known, name) for name in names} if known is not None else {}


def computed_in(job: Job) -> Any:
    """The type of the computation where it differs from that of the weights."""
    import torch

    if job.dtype == "float32" or not job.master:
        return None
    return getattr(torch, job.dtype)


def threads(flops_per_pass: float) -> int:
    """How many threads the CPU's operators get, unless the user chose (OMP_NUM_THREADS).

    The cores are shared among the machine's processes, and a small model gets few: its operators
    end sooner than their threads meet, and on a busy machine meeting takes longest. Depends on the
    job and the machine alone, so a run that continues adds up in the same order.
    """
    import torch

    if "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    share = max(1, processors.available() // local)
    chosen = max(1, min(share, math.ceil(flops_per_pass / FLOPS_PER_THREAD)))
    torch.set_num_threads(chosen)
    return chosen
