"""Puts the sample engine's part of a job together: schema, task, feed."""

from __future__ import annotations

from typing import Any

from joymigrate.extras import need
from joymigrate.run.train.job import Job, data_files
from joymigrate.run.train.samples import schema as schemas
from joymigrate.run.train.samples import task_names
from joymigrate.run.train.samples.balance import Balancer, workload
from joymigrate.run.train.samples.feed import SampleFeed
from joymigrate.run.train.samples.open_rows import open_rows
from joymigrate.run.train.samples.readers import start_readers
from joymigrate.run.train.samples.tasks import FeatureTask
from joymigrate.run.train.tasks.task import TaskContext


def task_of(job: Job) -> FeatureTask:
    """The job's task over its schema."""
    need("rec", "pyarrow", "torchmetrics", what="data.schema")
    assert job.data.schema is not None
    schema = schemas.load(job.path(job.data.schema))
    options = dict(job.task.options)
    for name in ("codes", "reward"):  # files beside the job
        if isinstance(options.get(name), str):
            options[name] = str(job.path(options[name]))
        elif isinstance(options.get(name), list | tuple):
            options[name] = [str(job.path(str(one))) for one in options[name]]
    context = TaskContext(tokenizer=None, seed=job.seed, options=options)
    return task_names.find(job.task.name)(context, schema, job.tables)


def feed_of(job: Job, task: Any, size: int, micro: int, rank: int, ranks: int) -> SampleFeed:
    """This process's part of every step."""
    rows = open_rows(data_files(job), task.schema, job.seed, shuffle=job.data.shuffle)
    wish = job.data.readers
    readers = start_readers(wish.engine, wish.count, wish.ahead)
    balancer = None
    if job.batch.balance and ranks > 1:
        balancer = Balancer(rank, ranks, workload(task.schema))
    return SampleFeed(
        rows, readers, task.samples_of, size, micro, rank, ranks, balancer, copies=job.layout.cp
    )
