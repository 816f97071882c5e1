"""The losses of the recorded steps, as one process would have them. No torch."""

from __future__ import annotations

from joymigrate.verify.bundle import Bundle


def losses(bundle: Bundle) -> dict[int, dict[int, float]]:
    """What backward passes began with: number of the pass in its step → step → value.

    Of a divided batch every process holds its share of the mean, and the shares add up.
    """
    found: dict[int, dict[int, float]] = {}
    first, *others = bundle.ranks
    for step in first.steps:
        tables = [first.table(step), *(r.table(step) for r in others if step in r.steps)]
        for row, key in enumerate(tables[0].keys()):
            if key[0] != "loss:" or key[2] != "loss":
                continue
            value = float(tables[0].stats[row, 2])
            if tables[0].spread[row].startswith("partial"):
                parts = {tables[0].spread[row]}
                for table in tables[1:]:
                    at = table.place(key)
                    # With two kinds of parallelism at once several processes have the same share.
                    if at is None or (" " in table.spread[at] and table.spread[at] in parts):
                        continue
                    parts.add(table.spread[at])
                    value += float(table.stats[at, 2])
                if len(tables) < len(bundle.ranks):
                    continue  # a share is missing
            found.setdefault(key[1], {})[step] = value
    return found
