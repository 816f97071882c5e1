"""A click-through model with embedding bags and a feature cross, written for CUDA."""

import torch
import torch.nn as nn


class Ctr(nn.Module):
    """Embeddings of sparse fields, a small network for dense ones, pairwise products."""

    def __init__(self, fields=3, rows=50, width=8, dense=4):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(fields))
        self.bottom = nn.Sequential(nn.Linear(dense, width), nn.ReLU())
        pairs = (fields + 1) * fields // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, sparse, offsets):
        vectors = [self.bottom(dense)]
        vectors += [table(column, offsets) for table, column in zip(self.tables, sparse)]
        stacked = torch.stack(vectors, 1)
        products = stacked @ stacked.transpose(1, 2)
        rows, columns = torch.tril_indices(stacked.shape[1], stacked.shape[1], -1, device=dense.device)
        return self.top(torch.cat([vectors[0], products[:, rows, columns]], 1)).squeeze(1)


def batch(generator, size=32):
    dense = torch.rand(size, 4, generator=generator)
    sparse = [torch.randint(0, 50, (2 * size,), generator=generator) for _ in range(3)]
    return dense.cuda(), [column.cuda() for column in sparse], torch.arange(0, 2 * size, 2).cuda()


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Ctr().cuda()
    optimiser = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for step in range(6):
        dense, sparse, offsets = batch(generator)
        labels = (dense[:, 0] > 0.5).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, sparse, offsets), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    on_card = loss.device.type == "cuda" and all(p.is_cuda for p in model.parameters())
    if not on_card:
        raise RuntimeError("something stayed on the CPU")
    print(f"loss {loss.item():.4f} done")


if __name__ == "__main__":
    main()
