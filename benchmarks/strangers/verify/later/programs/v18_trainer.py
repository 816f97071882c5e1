"""A small Trainer class: epochs over a DataLoader, evaluation after each, the best score is kept."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils import data
import accel  # noqa

class Trainer:
    def __init__(self, model, train, test, lr=0.05, epochs=4, batch=16, seed=0):
        self.model, self.epochs = model, epochs
        self.train_loader = data.DataLoader(train, batch_size=batch, shuffle=True, generator=torch.Generator().manual_seed(seed))
        self.test_loader = data.DataLoader(test, batch_size=100)
        self.opt = torch.optim.SGD(model.parameters(), lr, momentum=0.9); self.best = 0.0; self.log = []
    def training_step(self, batch):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.opt.zero_grad(); loss.backward(); self.opt.step()
        return loss.item()
    @torch.no_grad()
    def evaluate(self):
        self.model.eval(); hit = [(self.model(x).argmax(-1) == y).float().mean() for x, y in self.test_loader]; self.model.train()
        return torch.stack(hit).mean().item()
    def fit(self):
        for epoch in range(self.epochs):
            losses = [self.training_step(b) for b in self.train_loader]
            score = self.evaluate(); self.best = max(self.best, score)
            print(f"epoch {epoch} train_loss {sum(losses) / len(losses):.5f} eval_accuracy {score:.3f}")
        print(f"best {self.best:.3f}")

torch.manual_seed(18); g = torch.Generator().manual_seed(2); centre = torch.randn(4, 10, generator=g)
def make(n):
    y = torch.randint(0, 4, (n,), generator=g); return data.TensorDataset(centre[y] + 1.2 * torch.randn(n, 10, generator=g), y)
train, test = make(40), make(200)
Trainer(nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 4)), train, test).fit()
