"""`train generate`, `train histories`, `train versions`: around models over features."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.errors import Exit, JoyError


def register(app: typer.Typer) -> None:
    """Add the commands to `train`."""
    app.command("generate")(generate)
    app.command("histories")(histories)
    app.command("versions")(versions)
    app.command("ids")(ids)


def generate(
    folder: Path = typer.Argument(..., help="Where to write."),
    rows: int = typer.Option(100_000, "--rows", min=10, help="Rows; a tenth is for evaluation."),
    users: int = typer.Option(5_000, "--users", min=1, help="Users."),
    items: int = typer.Option(20_000, "--items", min=1, help="Items."),
    zipf: float = typer.Option(1.05, "--zipf", min=0, help="Power of the items' Zipf law."),
    history: int = typer.Option(200, "--history", min=0, help="Older events of a user (mean)."),
    length: int = typer.Option(100, "--length", min=1, help="Events that a row sees."),
    files: int = typer.Option(4, "--files", min=1, help="Parquet files."),
    seed: int = typer.Option(0, "--seed", help="Of the draws."),
    denormalised: bool = typer.Option(
        False, "--denormalised", help="Also write the rows with their history in each of them."
    ),
) -> int:
    """Make clicks with the skew of a shop: Parquet, a history store, a schema and a job."""
    from joymigrate.cli._output import emit
    from joymigrate.extras import need
    from joymigrate.run.train.samples.generate import Clicks
    from joymigrate.run.train.samples.generate import generate as write

    need("rec", "pyarrow", "lmdb", what="train generate")
    wish = Clicks(
        rows=rows, users=users, items=items, zipf=zipf, history=history, length=length,
        files=files, seed=seed,
    )  # fmt: skip
    sizes = write(folder, wish, denormalised=denormalised)
    emit("".join(f"{name:<14} {size:>14,} bytes\n" for name, size in sizes.items() if size))
    return Exit.OK


def histories(
    events: list[Path] = typer.Argument(..., help="Parquet files of events, in order of time."),
    store: str = typer.Option(
        ..., "-o", "--output", help="A folder (LMDB), or redis://HOST:PORT/DB#PREFIX."
    ),
    key: str = typer.Option("user_id", "--key", help="The column with the user's number."),
    fields: list[str] = typer.Option(
        [], "--field", help="Whole-number columns to keep (default: all others)."
    ),
) -> int:
    """Store users' events once, so that rows need not repeat them."""
    from joymigrate.cli._output import talk
    from joymigrate.extras import need
    from joymigrate.run.train.samples.histories import build

    need("rec", "pyarrow", "lmdb", what="train histories")
    for path in events:
        if not path.is_file():
            raise JoyError("no such file of events", where=str(path), help="name Parquet files")
    count = build(events, store, key, fields)
    talk([f"{count:,} events in {store}"])
    return Exit.OK


@answers("published")
def versions(
    place: str = typer.Argument(..., help="A folder, or redis://HOST:PORT/DB#PREFIX."),
    verify: bool = typer.Option(False, "--verify", help="Read every file and compare its hash."),
    compact: bool = typer.Option(False, "--compact", help="Write a snapshot of the newest."),
    prune: int | None = typer.Option(
        None, "--prune", min=1, help="Keep so many snapshots and what lies behind the oldest."
    ),
) -> Answer:
    """List the published versions of a model that keeps learning; check, compact, prune."""
    from joymigrate.cli._output import talk
    from joymigrate.extras import need
    from joymigrate.run.train.formats import versions as published

    need("rec", "torch", "safetensors", what="train versions")
    store = published.open_versions(place)
    links = published.chain(store)
    if verify:
        size = published.verify(store, links)
        talk([f"version {links[-1]['version']}: {len(links)} forms, {size:,} bytes, all whole"])
    if compact:
        published.compact(store)
    if prune is not None:
        gone = published.prune(store, prune)
        talk([f"{len(gone)} forms removed"])
    rows = [published.summary(store.manifest(*one)) for one in store.forms()]
    lines = [
        f"{row['version']:>8} {row['form']:<8} {row['bytes']:>12,} bytes  "
        f"{row['rows_changed']:>9,} rows  samples to {row['samples']:,}"
        for row in rows
    ]
    document = {"schema": "joymigrate.published/1", "versions": rows}
    return Answer(document, "\n".join(lines) + "\n")


def ids(
    vectors: Path = typer.Argument(
        ..., help="A table of train export (table.NAME.safetensors), or Parquet with a vector."
    ),
    output: Path = typer.Option(..., "-o", "--output", help="Where the codes go (safetensors)."),
    method: str = typer.Option("rq-kmeans", "--method", help="rq-kmeans or rq-vae."),
    levels: int = typer.Option(3, "--levels", min=1, help="Codes of an id."),
    size: int = typer.Option(256, "--size", min=2, help="Entries of a level."),
    key: str = typer.Option("item_id", "--key", help="Parquet: the column with the item."),
    column: str = typer.Option("vector", "--column", help="Parquet: the column with its vector."),
    steps: int = typer.Option(1000, "--steps", min=1, help="rq-vae: steps of training."),
    seed: int = typer.Option(0, "--seed", help="Of the draws."),
) -> int:
    """Give every item a semantic id: a few codes that a generative model can write."""
    import torch

    from joymigrate.cli._output import emit, one_of, talk
    from joymigrate.extras import need
    from joymigrate.run.train.semantic_ids import quantise
    from joymigrate.run.train.semantic_ids.codes import distinct
    from joymigrate.run.train.semantic_ids.vectors import read_vectors

    need("rec", "pyarrow", what="train ids")
    one_of(method, ("rq-kmeans", "rq-vae"), "--method")
    items, rows = read_vectors(vectors, key, column)
    if method == "rq-vae":
        made = quantise.residual_vae(
            rows, levels, size, seed, steps=steps, tell=lambda line: talk([line])
        )
    else:
        made = quantise.residual_k_means(rows, levels, size, seed)
    known = distinct(items, made.codes, (size,) * levels)
    known.write(output)
    first = len(torch.unique(made.codes, dim=0))
    used = [len(torch.unique(made.codes[:, level])) for level in range(levels)]
    emit(
        f"items        {len(items)}\n"
        f"levels       {'x'.join(map(str, known.sizes))}\n"
        f"codes used   {', '.join(map(str, used))}\n"
        f"distinct ids {first} before the last level numbers the rest\n"
        f"left over    {made.left_over:.1%} of the vectors' variance\n"
    )
    talk([f"wrote {output}"])
    return Exit.OK
