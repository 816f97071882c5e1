"""Turns vectors of items into codes: RQ-k-means and RQ-VAE.

    RQ-k-means   level by level: k-means of what the levels before left over (OneRec, section 3.2,
                 arXiv 2502.18965)
    RQ-VAE       an encoder, the same residual levels in its space, and a decoder, learned together
                 (Lee et al., 2022, arXiv 2203.01941, eq. 1-4; TIGER, arXiv 2305.05065, section 3.1)

N items, C columns, K levels, V entries of a level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError

PORTION = 4096  # rows whose distances are looked at together
COMMITMENT = 0.25  # weight of the encoder's share of the quantisation loss (RQ-VAE, eq. 4)
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Codebooks:
    """Codes [N, K], the books [K][V, C'], and the share of the variance that is left over."""

    codes: Tensor
    books: tuple[Tensor, ...]
    left_over: float


def nearest(x: Tensor, book: Tensor) -> Tensor:
    """The nearest entry of every row, the first of equal ones [N]."""
    square = book.square().sum(1)
    return torch.cat([(square - 2 * part @ book.T).argmin(1) for part in torch.split(x, PORTION)])


def k_means(x: Tensor, size: int, generator: torch.Generator, rounds: int = 25) -> Tensor:
    """Lloyd's algorithm from k-means++ seeds [V, C]; an empty cluster takes the worst row."""
    if len(x) <= size:
        return torch.cat([x, x[-1:].expand(size - len(x), -1)])
    picked = [int(torch.randint(len(x), (1,), generator=generator))]
    apart = (x - x[picked[0]]).square().sum(1)
    for _ in range(size - 1):
        share = apart if float(apart.sum()) > 0 else torch.ones_like(apart)
        picked.append(int(torch.multinomial(share, 1, generator=generator)))
        apart = torch.minimum(apart, (x - x[picked[-1]]).square().sum(1))
    book = x[picked].clone()
    owner = nearest(x, book)
    for _ in range(rounds):
        counts = owner.bincount(minlength=size)
        sums = torch.zeros_like(book).index_add_(0, owner, x)
        book = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], book)
        empty = (counts == 0).nonzero().squeeze(-1)
        if len(empty):
            worst = (x - book[owner]).square().sum(1).topk(len(empty)).indices
            book[empty] = x[worst]
        new = nearest(x, book)
        if torch.equal(new, owner) and not len(empty):
            break
        owner = new
    return book


def residual_k_means(vectors: Tensor, levels: int, size: int, seed: int = 0) -> Codebooks:
    """RQ-k-means of `vectors` [N, C]."""
    check_sizes(vectors, levels, size)
    generator = torch.Generator().manual_seed(seed)
    rest, total = vectors.float().clone(), float(vectors.float().var(0, False).sum())
    codes, books = [], []
    for _ in range(levels):
        book = k_means(rest, size, generator)
        codes.append(nearest(rest, book))
        rest = rest - book[codes[-1]]
        books.append(book)
    left = float(rest.square().sum(1).mean()) / max(total, 1e-12)
    return Codebooks(torch.stack(codes, 1), tuple(books), left)


class ResidualVae(nn.Module):
    """Encoder and decoder of one hidden layer, and the books between them."""

    def __init__(self, columns: int, inner: int, levels: int, size: int) -> None:
        super().__init__()
        hidden = max(inner, columns)
        self.encoder = nn.Sequential(
            nn.Linear(columns, hidden), nn.ReLU(), nn.Linear(hidden, inner)
        )
        self.decoder = nn.Sequential(
            nn.Linear(inner, hidden), nn.ReLU(), nn.Linear(hidden, columns)
        )
        self.books = nn.ParameterList(nn.Parameter(torch.zeros(size, inner)) for _ in range(levels))

    def quantise(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes [N, K], the sum of the entries, and the quantisation loss of every row."""
        rest, total = z, torch.zeros_like(z)
        codes, loss = [], z.new_zeros(len(z))
        for book in self.books:
            code = nearest(rest.detach(), book.detach())
            entry = book[code]
            loss = loss + (rest.detach() - entry).square().sum(1)
            loss = loss + COMMITMENT * (rest - entry.detach()).square().sum(1)
            codes.append(code)
            rest, total = rest - entry, total + entry
        return torch.stack(codes, 1), total, loss

    def forward(self, x: Tensor) -> Tensor:
        """The loss of rows: reconstruction and quantisation, the gradient straight through."""
        z = self.encoder(x)
        _, total, loss = self.quantise(z)
        back = self.decoder(z + (total - z).detach())
        found: Tensor = ((x - back).square().sum(1) + loss).mean()
        return found


def residual_vae(
    vectors: Tensor,
    levels: int,
    size: int,
    seed: int = 0,
    *,
    inner: int | None = None,
    steps: int = 1000,
    batch: int = 1024,
    lr: float = 1e-3,
    tell: Tell = lambda line: None,
) -> Codebooks:
    """RQ-VAE of `vectors` [N, C]; books start as k-means of the encoder's first outputs."""
    check_sizes(vectors, levels, size)
    x = vectors.float()
    x = (x - x.mean(0)) / x.std(0, False).clamp(min=1e-6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResidualVae(x.shape[1], inner or min(32, x.shape[1]), levels, size)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        start = x[torch.randperm(len(x), generator=generator)[: max(size * 8, PORTION)]]
        found = residual_k_means(model.encoder(start), levels, size, seed)
        for book, first in zip(model.books, found.books, strict=True):
            book.copy_(first)
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(steps):
        rows = torch.randint(len(x), (min(batch, len(x)),), generator=generator)
        loss = model(x[rows])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        if (step + 1) % max(1, steps // 5) == 0:
            tell(f"step {step + 1}: loss {float(loss.detach()):.4f}")
    with torch.no_grad():
        codes, entries, _ = model.quantise(model.encoder(x))
        left = float((x - model.decoder(entries)).square().sum(1).mean())
    total = max(1e-12, float(x.var(0, False).sum()))
    return Codebooks(codes, tuple(book.detach() for book in model.books), left / total)


def check_sizes(vectors: Tensor, levels: int, size: int) -> None:
    """Something to quantise, into something."""
    if vectors.dim() != 2 or not len(vectors):
        raise JoyError(f"items are rows of vectors, got the shape {tuple(vectors.shape)}")
    if not bool(torch.isfinite(vectors).all()):
        row = int((~torch.isfinite(vectors)).any(1).nonzero()[0, 0])
        raise JoyError(f"the vector of row {row} is not finite", help="train the table again")
    if levels < 1 or size < 2:
        raise JoyError(f"an id has a level of two entries at least, got {levels} of {size}")
