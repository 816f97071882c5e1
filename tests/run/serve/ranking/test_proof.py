"""Rows that meet are found in the graph, whatever a few random requests would show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from joymigrate.run.serve.ranking.proof import prove
from joymigrate.run.serve.ranking.proof.prove import Axes, RowProof

ROWS, USERS = torch.export.Dim("rows", max=4096), torch.export.Dim("users")
AXES = Axes({"x": "row", "owner": "row", "users": "user", "tokens": "token"}, {"owner": "user"},
            {"lengths": ("token", "user")}, {"offsets": ("token", "user")})  # fmt: skip


class Model(torch.nn.Module):
    """Scores [C] by `body(self, x [C, 4], users [U, 4], owner [C])`."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = body
        self.table = torch.nn.Embedding(50, 4)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(),
                                       torch.nn.Linear(8, 1))  # fmt: skip
        self.batch = torch.nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Any, users: Any, owner: Any) -> Any:
        return self.body(self, x, users, owner)


def proof_of(body: Any, axes: Axes = AXES) -> RowProof:
    given = {"x": torch.randn(6, 4), "users": torch.randn(3, 4), "owner": torch.arange(6) % 3}
    shapes: Any = {"x": {0: ROWS}, "users": {0: USERS}, "owner": {0: ROWS}}
    program = torch.export.export(Model(body).eval(), (), given, dynamic_shapes=shapes)
    return prove.prove(prove.decompose(program), axes)


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x, u, o: m.net(x)[:, 0] + u[o].sum(1),
        lambda m, x, u, o: (m.net(x)[:, 0] * u[o].softmax(-1)[:, 0]).clamp(-5, 5),
        lambda m, x, u, o: m.batch(x).sort(1).values[:, 0] + u[o, 0],
        lambda m, x, u, o: x.cumsum(1)[:, -1] + x.amax(1),
        lambda m, x, u, o: torch.stack([x, u[o]], 1).flatten(1) @ torch.ones(8),
    ],
)
def test_rows_of_their_own_are_proven(body: Any) -> None:
    found = proof_of(body)
    assert found.why == ""
    assert found.most == 4096


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (lambda m, x, u, o: x.sum(1).softmax(0), "divided by a sum over all rows"),
        (lambda m, x, u, o: x[:, 0] - x.mean(), "one number is made of all rows"),
        (lambda m, x, u, o: x[:, 0].argsort().argsort() + 0.0, "ordered among all rows"),
        (lambda m, x, u, o: x[:, 0] - 0.1 * torch.arange(x.shape[0]), "places among the rows"),
        (lambda m, x, u, o: x[:, 0] / x.shape[0], "the number of rows is used as a number"),
        (lambda m, x, u, o: (x @ x.T).logsumexp(1), "every row meets every other row"),
        (lambda m, x, u, o: x[:, 0] - x[0, 0], "one row is picked for all"),
        (lambda m, x, u, o: m.table(o).sum(1), "places among the rows"),
        (lambda m, x, u, o: x[:, 0] + u.mean(), "one number is made of all rows"),
        (lambda m, x, u, o: F.pad(x, (0, 0, 1, 0))[:-1, 0], "rows are added"),
        (lambda m, x, u, o: x[:, 0] + torch.rand(x.shape[0]), "draws random numbers"),
        (lambda m, x, u, o: torch.zeros(u.shape[0]).index_add(0, o, x[:, 0])[o], "several rows"),
        (lambda m, x, u, o: x[:, 0] + m.seen.add_(x.sum()), "made of all rows"),
        (lambda m, x, u, o: x[:, 0].logcumsumexp(0), "adds up the rows before it"),
    ],
)
def test_rows_that_meet_are_computed_alone(body: Any, why: str) -> None:
    assert why in proof_of(body).why or "writes what it keeps" in proof_of(body).why


def test_cutting_has_a_proof_of_its_own() -> None:
    def body(m: Any, x: Any, users: Any, owner: Any) -> Any:
        return x[:, 0] + users.mean()  # of all users: pieces of a request bring the same ones

    assert proof_of(body).why
    assert proof_of(body, prove.cut_only(AXES)).why == ""


def test_bags_of_users_by_lengths_are_their_own() -> None:
    class Bags(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = torch.nn.EmbeddingBag(50, 4, mode="sum", include_last_offset=True)

        def forward(self, x: Any, owner: Any, tokens: Any, lengths: Any) -> Any:
            ends = F.pad(lengths.cumsum(0), (1, 0))
            return (self.bag(tokens, ends)[owner] * x).sum(1)

    given = {"x": torch.randn(6, 4), "owner": torch.arange(6) % 2, "tokens": torch.arange(5),
             "lengths": torch.tensor([2, 3])}  # fmt: skip
    dims = {"x": ROWS, "owner": ROWS, "tokens": torch.export.Dim("tokens"), "lengths": USERS}
    shapes: Any = {name: {0: dim} for name, dim in dims.items()}
    program = torch.export.export(Bags().eval(), (), given, dynamic_shapes=shapes)
    rows = {**AXES.rows, "lengths": "user"}
    axes = Axes(rows, AXES.places, AXES.lengths)
    assert prove.prove(prove.decompose(program), axes).why == ""
