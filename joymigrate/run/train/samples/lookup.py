"""A recommendation model: rows looked up in tables, and the dense part over them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError
from joymigrate.run.train import recommendation
from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs
from joymigrate.run.train.samples.batch import JaggedIds, ranges
from joymigrate.run.train.samples.encode import TIMES
from joymigrate.run.train.samples.job import TableSettings
from joymigrate.run.train.samples.schema import FeatureSchema
from joymigrate.run.train.semantic_ids.codes import CODES, SemanticIds
from joymigrate.run.train.tables.configs import EmbeddingConfig
from joymigrate.run.train.tables.embedding import EmbeddingCollection
from joymigrate.run.train.tables.keyed_jagged import KeyedJaggedTensor
from joymigrate.run.train.tables.table import Table

NEGATIVES = "negatives"  # ids that the right item is told from, in a batch
ROLLOUT = "rollout"  # a function of the dense part and its inputs, in a batch: it gives the losses
LINEAR = ".linear"  # behind a table's name: its first-order weights
ARCHITECTURE = "joymigrate.recommender/1"
ASKED = "asked"  # when each row's item was asked for, whole seconds, in a batch


class TableLookup(nn.Module):
    """All tables of a schema; every table is asked once per batch."""

    def __init__(
        self, schema: FeatureSchema, settings: TableSettings, *, linear: bool, seed: int
    ) -> None:
        super().__init__()
        shapes = {name: (one.rows, one.width) for name, one in schema.tables().items()}
        if linear:
            shapes |= {f"{name}{LINEAR}": (rows, 1) for name, (rows, _) in [*shapes.items()]}
        fused = settings.optimiser != "none"
        endless = [name for name, (rows, _) in shapes.items() if rows is None]
        if endless and not fused:
            raise JoyError(
                f"table '{endless[0]}' is dynamic, and has no optimiser of its rows",
                where="tables.optimiser",
                help="tables: {optimiser: adagrad}, or give the feature `rows`",
            )
        widths = sorted({width for _, width in shapes.values()})
        self.shapes = shapes
        self.collections = nn.ModuleList()
        self.place: dict[str, int] = {}
        for number, width in enumerate(widths):
            mine = {name: rows for name, (rows, one) in shapes.items() if one == width}
            self.place |= dict.fromkeys(mine, number)
            bound = 0.0 if width == 1 else settings.first
            configs = [
                EmbeddingConfig(
                    rows or 1, width, name, feature_names=[name],
                    weight_init_min=-bound, weight_init_max=bound,
                )
                for name, rows in mine.items()
            ]  # fmt: skip
            options = {name: settings.options(rows, seed) for name, rows in mine.items()}
            chosen = settings.row_optimiser() if fused else None
            self.collections.append(
                EmbeddingCollection(configs, optimiser=chosen, options=options if fused else None)
            )

    def forward(self, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows [N, D] of ids [N], by table."""
        found: dict[str, Tensor] = {}
        for number, collection in enumerate(self.collections):
            mine = {name: ids for name, ids in wanted.items() if self.place[name] == number}
            for name in self.place:  # a table that nobody asks for gets no ids
                if self.place[name] == number and name not in mine:
                    mine[name] = next(iter(wanted.values())).new_empty(0)
            ids = torch.cat(list(mine.values()))
            lengths = torch.tensor([len(one) for one in mine.values()], device=ids.device)
            made = collection(KeyedJaggedTensor(list(mine), ids, lengths=lengths))
            found |= {name: made[name].values() for name in mine if name in wanted}
        return found

    def tables(self) -> dict[str, Table]:
        """The tables that are updated in the backward pass, by name."""
        return {
            name: collection.table(name)  # type: ignore[operator]
            for name, number in self.place.items()
            for collection in [self.collections[number]]
            if name in collection.optimisers  # type: ignore[operator]
        }


class Widen(nn.Module):
    """Rows of narrower tables, made as wide as the others by a matrix for each table.

    Ginart et al., Mixed Dimension Embeddings, 2019 (arXiv 1909.11810), section 4: e = P v.
    """

    def __init__(self, narrow: Mapping[str, int], dim: int) -> None:
        super().__init__()
        self.places = {name: str(number) for number, name in enumerate(sorted(narrow))}
        self.matrices = nn.ModuleDict(
            {self.places[name]: nn.Linear(width, dim, bias=False) for name, width in narrow.items()}
        )
        for matrix in self.matrices.values():
            nn.init.xavier_uniform_(matrix.weight)  # type: ignore[arg-type]

    @staticmethod
    def taken_from(dense: dict[str, Tensor], widths: Mapping[str, int]) -> dict[str, Tensor]:
        """Take the matrices by table out of the state of a dense part."""
        narrow = sorted(name for name, width in widths.items() if width < max(widths.values()))
        return {
            name: dense.pop(f"widen.matrices.{number}.weight") for number, name in enumerate(narrow)
        }

    def forward(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows [N, D] by table; first-order weights pass."""
        return {
            name: self.matrices[self.places[name]](part) if name in self.places else part
            for name, part in rows.items()
        }


class Recommender(nn.Module):
    """Tables and a dense part; `forward` takes a batch of `collate`."""

    def __init__(
        self,
        schema: FeatureSchema,
        sizes: Mapping[str, Any],
        settings: TableSettings,
        seed: int,
        codes: SemanticIds | None = None,
    ) -> None:
        super().__init__()
        self.codes = codes
        kind = recommendation.find(sizes["model_type"])
        self.schema, self.sizes = schema, dict(sizes)
        self.linear = bool(kind.LINEAR)
        self.fields = [*schema.singles(), *schema.bags()]
        self.sequences = schema.sequences()
        widths = {name: one.width for name, one in schema.tables().items()}
        dim = max(widths.values(), default=schema.dim)
        events = tuple(schema.features[name].length for name in self.sequences)
        levels = codes.sizes if codes is not None else ()
        self.shape = InputShape(
            len(self.fields), len(schema.dense()), dim, events, len(schema.label), levels
        )
        self.targets = [candidate_of(schema, name) for name in self.sequences]
        torch.manual_seed(seed)
        self.rows = TableLookup(schema, settings, linear=self.linear, seed=seed)
        rest = {key: value for key, value in sizes.items() if key != "model_type"}
        self.dense = kind.MODEL(self.shape, **rest)
        narrow = {name: width for name, width in widths.items() if width < dim}
        if narrow:
            self.dense.widen = Widen(narrow, dim)

    def wanted(self, batch: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
        """The ids that every table is asked for, feature by feature."""
        asked: dict[str, list[Tensor]] = {}
        for name in self.fields:
            asked.setdefault(self.schema.table_of(name), []).append(batch[f"{name}.ids"])
        for name in self.sequences:
            table = self.schema.table_of(name)
            asked.setdefault(table, []).append(batch[f"{name}.ids"].flatten())
        if NEGATIVES in batch:
            asked[self.schema.table_of(self.sequences[0])].append(batch[NEGATIVES].flatten())
        return asked

    def look_up(self, batch: Mapping[str, Tensor]) -> RowInputs:
        """All rows of a batch as the dense part takes them."""
        return self.look_up_both(batch)[0]

    def look_up_both(self, batch: Mapping[str, Tensor]) -> tuple[RowInputs, Tensor | None]:
        """`look_up`, and the rows of the batch's negatives, where it has some."""
        asked = self.wanted(batch)
        ids = {table: torch.cat(parts) for table, parts in asked.items()}
        if self.linear:
            ids |= self.first_order(batch)
        rows = self.rows(ids)
        if hasattr(self.dense, "widen"):
            rows = self.dense.widen(rows)
        split = {
            table: list(rows[table].split([len(one) for one in parts]))
            for table, parts in asked.items()
        }
        found = {name: split[self.schema.table_of(name)].pop(0) for name in self.fields}
        count = len(batch["labels"])
        fields = [self.pooled(name, found[name], batch, count) for name in self.fields]
        events = []
        for name, target in zip(self.sequences, self.targets, strict=True):
            flat = split[self.schema.table_of(name)].pop(0)
            rows_BLD = flat.view(*batch[f"{name}.ids"].shape, flat.shape[1])
            mask_BL = batch[f"{name}.mask"]
            events.append((rows_BLD * mask_BL[..., None], mask_BL, found[target]))
        linear_B = self.summed(rows, batch, count) if self.linear else None
        others = None
        if NEGATIVES in batch:
            others = split[self.schema.table_of(self.sequences[0])].pop(0)
        numbers = batch["numbers"]
        empty = numbers.new_zeros(count, 0, self.shape.dim)
        fields_BFD = torch.stack(fields, 1) if fields else empty
        times = tuple(batch.get(f"{name}{TIMES}") for name in self.sequences)
        found_codes: tuple[tuple[Tensor, Tensor], ...] = ()
        if self.codes is not None:
            pairs = zip(self.sequences, self.targets, strict=True)
            found_codes = tuple(
                (self.codes.of(batch[f"{name}.ids"]), self.codes.of(batch[f"{target}.ids"]))
                for name, target in pairs
            )
        inputs = RowInputs(
            fields_BFD, numbers, linear_B, tuple(events), times, found_codes, batch.get(ASKED)
        )
        return inputs, others

    def first_order(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The ids of first-order weights, by table."""
        asked: dict[str, list[Tensor]] = {}
        for name in self.fields:
            table = f"{self.schema.table_of(name)}{LINEAR}"
            asked.setdefault(table, []).append(batch[f"{name}.ids"])
        return {table: torch.cat(parts) for table, parts in asked.items()}

    def summed(self, rows: Mapping[str, Tensor], batch: Mapping[str, Tensor], count: int) -> Tensor:
        """The sum of the fields' first-order weights [B]."""
        rest = {name: part for name, part in rows.items() if name.endswith(LINEAR)}
        at = dict.fromkeys(rest, 0)
        total = batch["numbers"].new_zeros(count)
        for name in self.fields:
            table = f"{self.schema.table_of(name)}{LINEAR}"
            ids = batch[f"{name}.ids"]
            part = rest[table][at[table] : at[table] + len(ids)]
            at[table] += len(ids)
            total = total + self.pooled(name, part, batch, count).squeeze(-1)
        return total

    def pooled(self, name: str, rows: Tensor, batch: Mapping[str, Tensor], count: int) -> Tensor:
        """One vector per row: a bag's rows are added; an empty bag is zero [B, D]."""
        if f"{name}.rows" not in batch:
            return rows
        empty = rows.new_zeros(count, rows.shape[1])
        return empty.index_add(0, batch[f"{name}.rows"], rows)

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Logits [B, T]; with `next`, NEGATIVES or ROLLOUT in it, what such tasks ask for."""
        found, others = self.look_up_both(batch)
        if ROLLOUT in batch:
            losses: Tensor = batch[ROLLOUT](self.dense, found)
            return losses
        if "next" in batch:
            return self.next_items(found)
        if others is not None:
            return self.among(found, batch, others)
        logits: Tensor = self.dense(found)
        return logits

    def states(self, found: RowInputs) -> Tensor:
        """What the dense part knows after every event [B, L, D]."""
        if not hasattr(self.dense, "states"):
            raise JoyError(
                f"'{self.sizes['model_type']}' has no state after every event",
                where="model.from_config",
                help="task: sequence trains sasrec or hstu",
            )
        events_BLD, mask_BL, _ = found.events[0]
        known: Tensor = self.dense.states(events_BLD, mask_BL, found.times_of(0), found.asked_B)
        return known

    def among(self, found: RowInputs, batch: Mapping[str, Tensor], others: Tensor) -> Tensor:
        """After every event, cosines with the next item and with N others [B, L, 1 + N].

        Where sequences are cut over processes, of this process's M events alone [1, M, 1 + N].
        The others are the batch's [N], or each event's own [B, L, N]. An item that is the right
        one itself does not stand against it.
        """
        states_BLD, mask_BL = self.states(found), found.events[0][1]
        name, target = self.sequences[0], self.targets[0]
        next_BLD = following(found.events[0][0], mask_BL, found.events[0][2])
        ids_BL = following(batch[f"{name}.ids"], mask_BL, batch[f"{target}.ids"])
        unit = torch.nn.functional.normalize
        negatives, unlike = batch[NEGATIVES], unit(others, dim=-1)
        own_BL = getattr(self.dense, "own_BL", None)
        if own_BL is not None:
            states_BLD, next_BLD, ids_BL = (x[own_BL][None] for x in (states_BLD, next_BLD, ids_BL))
        states_BLD = unit(states_BLD, dim=-1)
        right_BL = (states_BLD * unit(next_BLD, dim=-1)).sum(-1, keepdim=True)
        if negatives.dim() == 1:
            wrong_BLN = states_BLD @ unlike.T
        else:
            own_BLND = unlike.view(*negatives.shape, -1)
            if own_BL is not None:
                own_BLND, negatives = own_BLND[own_BL][None], negatives[own_BL][None]
            wrong_BLN = (own_BLND @ states_BLD[..., None]).squeeze(-1)
        same_BLN = ids_BL[..., None] == negatives
        return torch.cat([right_BL, wrong_BLN.masked_fill(same_BLN, -torch.inf)], -1)

    def next_items(self, found: RowInputs) -> Tensor:
        """After every event, the logits of the next item and of another row's [B, L, 2]."""
        states_BLD = self.states(found)
        next_BLD = following(*found.events[0])
        right_BL = (states_BLD * next_BLD).sum(-1)
        wrong_BL = (states_BLD * next_BLD.roll(1, 0)).sum(-1)
        return torch.stack([right_BL, wrong_BL], -1)

    def save_pretrained(self, folder: Path) -> None:
        """Sizes, schema, dense weights, and every table as ids with rows."""
        import json

        from joymigrate.run.train.formats.versions import pack

        folder.mkdir(parents=True, exist_ok=True)
        head = {"architecture": ARCHITECTURE, **self.sizes}
        document = {**head, "features": self.schema.document()}
        (folder / "config.json").write_text(json.dumps(document, indent=1) + "\n")
        if self.codes is not None:
            self.codes.write(folder / CODES)
        (folder / "dense.safetensors").write_bytes(pack(dict(self.dense.state_dict())))
        for name, content in self.table_contents().items():
            (folder / f"table.{name}.safetensors").write_bytes(pack(content))

    def start_from(self, folder: Path) -> None:
        """Take over dense weights and rows of a folder of `save_pretrained`. Raises `JoyError`."""
        from safetensors.torch import load_file

        try:
            self.dense.load_state_dict(load_file(folder / "dense.safetensors"))
            stored = {
                name: load_file(folder / f"table.{name}.safetensors") for name in self.rows.place
            }
        except (OSError, RuntimeError) as error:
            raise JoyError(f"the model's files do not fit: {error}", where=str(folder)) from None
        fused = self.rows.tables()
        for name, number in self.rows.place.items():
            ids, rows = stored[name]["ids"], stored[name]["rows"]
            if name in fused:
                fused[name].load_weights(rows, ids.numpy())
                continue
            weight = self.rows.collections[number].plain[name].weight.detach()  # type: ignore[union-attr,index]
            if weight.shape != rows.shape:
                raise JoyError(
                    f"table '{name}' has {tuple(rows.shape)} rows and columns there, "
                    f"{tuple(weight.shape)} in the schema",
                    where=str(folder),
                )
            weight.copy_(rows)

    def table_contents(self) -> dict[str, dict[str, Tensor]]:
        """`ids` and `rows` of every table."""
        found = {}
        fused = self.rows.tables()
        for name, number in self.rows.place.items():
            if name in fused:
                parts = list(fused[name].all_rows())
                ids = [torch.from_numpy(ids.copy()) for ids, _ in parts]
                rows = torch.cat([rows for _, rows in parts]) if parts else torch.empty(
                    0, self.rows.shapes[name][1])  # fmt: skip
                found[name] = {"ids": torch.cat([torch.empty(0, dtype=torch.int64), *ids]),
                               "rows": rows}  # fmt: skip
            else:
                weight = self.rows.collections[number].plain[name].weight.detach()  # type: ignore[union-attr,index]
                found[name] = {"ids": torch.arange(len(weight)), "rows": weight}
        return found


def following(of_BL: Tensor, mask_BL: Tensor, last: Tensor) -> Tensor:
    """What comes after every event: the next event's, and after the last one `last` [B, …]."""
    end = (mask_BL.sum(1) - 1).clamp(min=0)
    rows = torch.arange(len(end), device=end.device)
    return of_BL.roll(-1, 1).index_put((rows, end), last)


def candidate_of(schema: FeatureSchema, sequence: str) -> str:
    """The feature that a sequence is compared with: the one of the same table."""
    table = schema.table_of(sequence)
    names = [name for name in schema.singles() if schema.table_of(name) == table]
    if not names:
        raise JoyError(
            f"no feature with one id per row shares table '{table}' with '{sequence}'",
            where=f"features.{sequence}.table",
            help="a sequence of items names the table of the candidate item: table: item_id",
        )
    return names[0]


def collate(schema: FeatureSchema, batch: Any) -> dict[str, Tensor]:
    """A `SampleBatch` as tensors: ids, the rows of bags, padded sequences with their masks."""
    import numpy as np

    made = {
        "labels": torch.from_numpy(np.ascontiguousarray(batch.labels)),
        "numbers": torch.from_numpy(np.ascontiguousarray(batch.numbers)),
    }
    if batch.times is not None and any(name.endswith(TIMES) for name in batch.lists):
        known = np.where(np.isfinite(batch.times), batch.times, 0)
        made[ASKED] = torch.from_numpy(known.astype(np.int64))
    if batch.groups is not None:
        made["groups"] = torch.from_numpy(np.ascontiguousarray(batch.groups))
    for name, values in batch.ids.items():
        made[f"{name}.ids"] = torch.from_numpy(np.ascontiguousarray(values))
    for name, one in batch.lists.items():
        if name.endswith(TIMES):
            length = schema.features[name.removesuffix(TIMES)].length
            made[name], _ = pad_lists(one, length)
            continue
        feature = schema.features[name]
        if feature.type == "sequence":
            made[f"{name}.ids"], made[f"{name}.mask"] = pad_lists(one, feature.length)
        else:
            made[f"{name}.ids"] = torch.from_numpy(np.require(one.values, requirements=["C", "W"]))
            owner = np.repeat(np.arange(len(batch)), one.lengths)
            made[f"{name}.rows"] = torch.from_numpy(owner)
    return made


def pad_lists(lists: JaggedIds, length: int) -> tuple[Tensor, Tensor]:
    """Ids [B, length], 0 behind the last one, and where they are; longer rows keep their end."""
    import numpy as np

    values, lengths = lists.values, lists.lengths
    counts = np.minimum(lengths, length)
    if len(lengths) and lengths.max() > length:
        values = values[ranges(lists.offsets[1:] - counts, counts)]
    mask = torch.arange(length) < torch.from_numpy(counts)[:, None]
    source = np.require(values, dtype=np.int64, requirements=["C", "W"])
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    return ids.masked_scatter_(mask, torch.from_numpy(source)), mask
