"""The rows of a collection's tables in `state_dict`.

A static table is `<prefix><name>.weight` [V, D], as in TorchRec; a dynamic one `.ids` [n] and
`.weight` [n, D]. Rows of several processes belong into no such dictionary: there it is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.rowless_state import LEFT_OUT


def save_rows(collection: Any, destination: Any, prefix: str) -> None:
    """Put the rows of fused tables into a state dictionary."""
    if LEFT_OUT.get():
        return
    for name in collection.fused():
        table = whole(collection, name)
        parts = list(table.all_rows())
        weight = torch.cat([rows for _, rows in parts] or [table.form.empty(0)[0]])
        if table.dynamic:
            ids = np.concatenate([ids for ids, _ in parts] or [np.zeros(0, dtype=np.int64)])
            destination[f"{prefix}{name}.ids"] = torch.from_numpy(ids)
        destination[f"{prefix}{name}.weight"] = weight


def load_rows(collection: Any, state: Any, prefix: str, missing: list[str]) -> set[str]:
    """Take the rows of fused tables from a state dictionary; the keys that were taken."""
    taken: set[str] = set()
    if LEFT_OUT.get():
        return taken
    for name in collection.fused():
        keys = [f"{prefix}{name}.weight"]
        table = whole(collection, name)
        if table.dynamic:
            keys.append(f"{prefix}{name}.ids")
        absent = [key for key in keys if key not in state]
        missing += absent
        if absent:
            continue
        weight = state[keys[0]].detach().cpu()
        table.load_weights(weight, state[keys[1]].cpu().numpy() if table.dynamic else None)
        taken.update(keys)
    return taken


def whole(collection: Any, name: str) -> Any:
    """The table where all of it lies in this process."""
    try:
        return collection.table(name)
    except JoyError as error:
        raise JoyError(
            "the rows of this table lie in several processes",
            where=f"table '{name}'",
            help="save them with Checkpointer, or export_tables",
        ) from error
