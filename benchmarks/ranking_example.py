"""A DIN-like ranking model of our own, exported: for trials, tests and benchmarks.

Deep Interest Network attention (Zhou et al., 2018, arXiv 1706.06978) over the user's history, a
transformer block, and pairwise products of the fields as in DLRM (arXiv 1906.00091).
Shapes: C candidates, U users, L history, F fields of a candidate, G fields of a user, D width.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ITEMS, CATEGORIES, USERS, FIELDS, USER_FIELDS, WIDTH = 5000, 500, 2000, 5, 3, 32
SIGNATURE: dict[str, Any] = {
    "schema": "joymigrate.ranking-model/1",
    "inputs": {
        "item": {"role": "candidate", "ids": [ITEMS] + [CATEGORIES] * (FIELDS - 1)},
        "user": {"role": "user", "ids": USERS},
        "history": {"role": "sequence", "layout": "padded", "pad": 0, "ids": ITEMS},
        "lengths": {"role": "lengths", "of": "history"},
        "owner": {"role": "owner"},
    },
    "outputs": ["score"],
}


def din(seed: int = 0, *, items: int = ITEMS, width: int = WIDTH) -> torch.nn.Module:
    """The model; inputs item [C, F], user [U, G], history [U, L], lengths [U], owner [C]."""
    import torch
    from torch import nn

    class Din(nn.Module):
        """One logit per candidate."""

        first: torch.Tensor
        second: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(items, width)
            self.categories = nn.Embedding(CATEGORIES, width)
            self.users = nn.Embedding(USERS, width)
            self.qkv = nn.Linear(width, 3 * width)
            self.mixed = nn.Linear(width, width)
            self.norm = nn.LayerNorm(width)
            self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(),
                                      nn.Linear(2 * width, width))  # fmt: skip
            self.unit = nn.Sequential(nn.Linear(4 * width, 32), nn.PReLU(), nn.Linear(32, 1))
            fields = FIELDS + USER_FIELDS + 1
            first, second = torch.triu_indices(fields, fields, 1)
            self.register_buffer("first", first)
            self.register_buffer("second", second)
            self.top = nn.Sequential(nn.Linear(fields * width + len(first), 64), nn.ReLU(),
                                     nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))  # fmt: skip

        def forward(
            self,
            item: torch.Tensor,
            user: torch.Tensor,
            history: torch.Tensor,
            lengths: torch.Tensor,
            owner: torch.Tensor,
        ) -> torch.Tensor:
            """Logits [C]."""
            item_CFD = torch.cat([self.items(item[:, :1]), self.categories(item[:, 1:])], 1)
            past_ULD = self.items(history)
            seen_UL = torch.arange(history.shape[1], device=history.device) < lengths[:, None]
            query, key, value = self.qkv(past_ULD).chunk(3, -1)
            weight_ULL = (query @ key.transpose(-1, -2)) * width**-0.5
            weight_ULL = weight_ULL.masked_fill(~seen_UL[:, None, :], -1e9).softmax(-1)
            past_ULD = self.norm(past_ULD + self.mixed(weight_ULL @ value))
            past_ULD = past_ULD + self.feed(past_ULD)
            past_CLD = past_ULD[owner]
            target_CLD = item_CFD[:, :1].expand(-1, history.shape[1], -1)
            joined = torch.cat(
                [target_CLD, past_CLD, target_CLD - past_CLD, target_CLD * past_CLD], -1
            )
            score_CL = self.unit(joined).squeeze(-1) * seen_UL[owner]
            interest_C1D = score_CL[:, None, :] @ past_CLD
            all_CND = torch.cat([item_CFD, self.users(user)[owner], interest_C1D], 1)
            products_CNN = all_CND @ all_CND.transpose(1, 2)
            pairs = products_CNN[:, self.first, self.second]
            made: torch.Tensor = self.top(torch.cat([all_CND.flatten(1), pairs], 1)).squeeze(-1)
            return made

    torch.manual_seed(seed)
    return Din().eval()


def request(
    candidates: int, length: int, seed: int = 0, *, items: int = ITEMS
) -> dict[str, torch.Tensor]:
    """A random request of one user."""
    import torch

    draw = torch.Generator().manual_seed(seed)

    def ids(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=draw)

    return {
        "item": torch.cat([ids(items, candidates, 1), ids(CATEGORIES, candidates, FIELDS - 1)], 1),
        "user": ids(USERS, 1, USER_FIELDS),
        "history": ids(items, 1, length),
    }


def export(path: Path, seed: int = 0, *, items: int = ITEMS) -> Path:
    """Write the model as a torch.export program with its signature inside; returns `path`."""
    import json

    import torch
    from torch.export import Dim

    given = request(4, 6, items=items)
    given["lengths"] = torch.tensor([6])
    inputs = {name: torch.cat([tensor] * 2) if name != "item" else tensor
              for name, tensor in given.items()}  # fmt: skip
    inputs["owner"] = torch.tensor([0, 1, 0, 1])
    users, count, length = Dim("users"), Dim("candidates"), Dim("length")
    dynamic: dict[str, Any] = {
        "item": {0: count},
        "user": {0: users},
        "history": {0: users, 1: length},
        "lengths": {0: users},
        "owner": {0: count},
    }
    program = torch.export.export(din(seed, items=items), (), kwargs=inputs, dynamic_shapes=dynamic)
    signature = json.loads(json.dumps(SIGNATURE))
    signature["inputs"]["item"]["ids"][0] = signature["inputs"]["history"]["ids"] = items
    torch.export.save(program, path, extra_files={"ranking.json": json.dumps(signature)})
    return path


if __name__ == "__main__":
    print(export(Path(sys.argv[1])))
