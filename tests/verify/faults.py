"""Faults planted in the source of small programs, and where a verdict must find each."""

# ruff: noqa: E501  lines of programs, as tables

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Fault:
    """Text to replace in a program, the module and phase to be named. `small`: below bf16 rounding."""

    name: str
    program: str
    old: str
    new: str
    module: str
    phase: str | None = "forward"
    small: bool = False
    random: bool = False  # its module draws at random

    def source(self) -> str:
        """The program with the fault in it."""
        text = (PROGRAMS / f"{self.program}.py").read_text(encoding="utf-8")
        assert self.old in text, (self.name, self.old)
        return text.replace(self.old, self.new, 1)


T, C, R = "transformer", "convnet", "ranking"

FAULTS = (
    # forward
    Fault("eps 1e-5", T, "eps=1e-6", "eps=1e-5", "layers.0.norm1", small=True),
    Fault("eps 1e-3", T, "eps=1e-6", "eps=1e-3", "layers.0.norm1", small=True),
    Fault("eps in one layer", T, "RMSNorm(D)\n        self.head", "RMSNorm(D, 1e-4)\n        self.head", "norm", small=True),
    Fault("rope interleaved", T, "a, b = x.chunk(2, -1)\n    return torch.cat((-b, a), -1)",
          "a, b = x[..., ::2], x[..., 1::2]\n    return torch.stack((-b, a), -1).flatten(-2)", "layers.0.attn.rotary"),
    Fault("rope sign", T, "torch.cat((-b, a), -1)", "torch.cat((b, -a), -1)", "layers.0.attn.rotary"),
    Fault("rope position off by one", T, "torch.arange(q.shape[-2]).float()", "torch.arange(1, 1 + q.shape[-2]).float()", "layers.0.attn.rotary"),
    Fault("rope base", T, "base=10000.0", "base=500000.0", "layers.0.attn.rotary", None),
    Fault("mask off by one", T, ".tril()", ".tril(-1) | torch.eye(ids.shape[1], dtype=torch.bool).roll(1, 0)", "model"),
    Fault("mask ignored", T, "scores = scores.masked_fill(~mask, float(\"-inf\"))", "pass", "layers.0.attn.core"),
    Fault("mask fill value", T, 'float("-inf")', "-1.0", "layers.0.attn.core"),
    Fault("softmax scale", T, "math.sqrt(q.shape[-1])", "math.sqrt(D)", "layers.0.attn.core"),
    Fault("softmax scale by 1 %", T, "math.sqrt(q.shape[-1])", "(1.01 * math.sqrt(q.shape[-1]))", "layers.0.attn.core", small=True),
    Fault("softmax axis", T, "softmax(-1)", "softmax(-2)", "layers.0.attn.core"),
    Fault("fp16 scores", T, "weights = scores.softmax(-1)", "weights = scores.half().float().softmax(-1).to(v.dtype)", "layers.0.attn.core", small=True),
    Fault("bf16 product", T, "self.down_proj(self.act", "(lambda m, v: F.linear(v.bfloat16(), m.weight.bfloat16()).to(v.dtype))(self.down_proj, self.act", "layers.0.mlp", small=True),
    Fault("gelu for silu", T, "return Scaled.apply(x)", "return F.gelu(x)", "layers.0.mlp.act"),
    Fault("tanh gelu for silu in layer 2", T, "return self.drop(self.down_proj(", "return self.drop(self.down_proj(0.99 * ", "layers.0.mlp"),
    Fault("dropout on", T, "nn.Dropout(0.0)", "nn.Dropout(0.1)", "layers.0.mlp.drop"),
    Fault("dropout rate", T, "self.drop = nn.Dropout(0.1)", "self.drop = nn.Dropout(0.2)", "layers.0.attn.core.drop"),
    Fault("dropout off", T, "model.train()", "model.eval()", "model"),
    Fault("transposed weight", T, "q = self.q_proj(x)", "q = (x @ self.q_proj.weight)", "layers.0.attn"),
    Fault("swapped projections", T, "k = self.k_proj(x)", "k = self.v_proj(x)", "layers.0.attn"),
    Fault("norm axis", T, "mean(-1, keepdim=True)", "mean(1, keepdim=True)", "layers.0.norm1"),
    Fault("norm without weight root", T, "torch.rsqrt(x.pow(2)", "torch.rsqrt(x.abs().pow(1.9)", "layers.0.norm1"),
    Fault("heads not transposed back", T, "y.transpose(1, 2).reshape(b, t, D)", "y.reshape(b, t, D)", "layers.0.attn"),
    Fault("residual forgotten", T, "x = x + self.attn(self.norm1(x), mask)", "x = self.attn(self.norm1(x), mask)", "layers.0"),
    Fault("norm after instead of before", T, "x + self.mlp(self.norm2(x))", "x + self.norm2(self.mlp(x))", "layers.0"),
    Fault("embedding scaled", T, "x = self.embed(ids)", "x = self.embed(ids) * 1.02", "model"),
    Fault("wrong padding", C, "nn.Conv2d(width, width, 3, padding=1)\n        self.bn1", "nn.Conv2d(width, width, 3, padding=1, padding_mode='circular')\n        self.bn1", "block1.conv1"),
    Fault("batch norm momentum", C, "momentum=0.1", "momentum=0.2", "stem.1", small=True),
    Fault("batch norm eps", C, "eps=1e-5", "eps=1e-3", "stem.1", small=True),
    Fault("average for max", C, "nn.MaxPool2d(2)", "nn.AvgPool2d(2)", "pool"),
    Fault("leaky for relu", C, "nn.ReLU(inplace=True),", "nn.LeakyReLU(0.02, inplace=True),", "stem.2"),
    Fault("residual halved", C, "y += x", "y += 0.5 * x", "block1"),
    Fault("layer norm over channels", C, "nn.LayerNorm([width, 6, 6])", "nn.GroupNorm(1, width)", "norm", None),
    Fault("flatten order", C, "x.flatten(1)", "x.transpose(1, 3).flatten(1)", "net"),
    Fault("bag mean for sum", R, 'mode="sum"', 'mode="mean"', "tables.0"),
    Fault("interaction with itself", R, "offset=-1)", "offset=0)[:, : z.shape[1] * (z.shape[1] - 1) // 2]", "interact"),
    Fault("relu after the last layer", R, "if i + 1 < len(self.layers):", "if True:", "bottom"),
    Fault("fields swapped", R, "zip(self.tables, batch[\"ids\"])", "zip(self.tables, batch[\"ids\"][::-1])", "ranker"),
    # backward
    Fault("backward times 1.02", T, "return g * (s + x * s * (1 - s))", "return 1.02 * g * (s + x * s * (1 - s))", "layers.0.mlp.act", "backward"),
    Fault("backward without a term", T, "(s + x * s * (1 - s))", "(s + x * s)", "layers.0.mlp.act", "backward"),
    Fault("detached branch", T, "* self.up_proj(x))", "* self.up_proj(x).detach())", "layers.0.mlp", "backward"),
    Fault("detached residual", T, "return x + self.mlp(self.norm2(x))", "return x.detach() + self.mlp(self.norm2(x))", "layers.0", "backward"),
    Fault("no gradient to a norm", T, "keepdim=True) + self.eps) * self.weight", "keepdim=True) + self.eps) * self.weight.detach()", "layers.0.norm1", "backward"),
    Fault("detached interaction", R, "pairs = z @ z.transpose(1, 2)", "pairs = z @ z.detach().transpose(1, 2)", "interact", "backward"),
    # the loop: losses and gradients
    Fault("label smoothing", C, "label_smoothing=0.1", "label_smoothing=0.0", "criterion"),
    Fault("loss scaled", R, "loss.backward()", "(loss * 1.5).backward()", "loss", "loss"),
    Fault("sum for mean", R, 'batch["label"])', 'batch["label"], reduction="sum")', "loss", "loss"),
    Fault("label shifted", R, 'batch["label"])', 'batch["label"].roll(1))', "loss", "loss"),
    Fault("clipped to another norm", R, "optimiser.step()", "torch.nn.utils.clip_grad_norm_(ranker.parameters(), 0.01); optimiser.step()", "ranker", "backward"),
    # optimisers
    Fault("beta2", T, "betas=(0.9, 0.95)", "betas=(0.9, 0.999)", "embed", "optimiser"),
    Fault("weight decay", T, '"weight_decay": 0.1', '"weight_decay": 0.01', "embed", "optimiser"),
    Fault("weight decay on norms", T, '"weight_decay": 0.0', '"weight_decay": 0.1', "layers.0.norm1", "optimiser"),
    Fault("eps of the optimiser", T, "eps=1e-8", "eps=1e-6", "embed", "optimiser"),
    Fault("learning rate schedule", T, "1.0 / (1 + s)", "1.0 / (2 + s)", "embed", "optimiser"),
    Fault("Adam for AdamW", T, "torch.optim.AdamW(", "torch.optim.Adam(", "embed", "optimiser"),
    Fault("momentum of SGD", C, "momentum=0.9", "momentum=0.8", "stem.0", "optimiser"),
    Fault("no bias correction", R, 'm = state["m"] / (1 - group["beta1"] ** state["step"])', 'm = state["m"]', "ranker", "optimiser"),
    Fault("eps inside the root", R, 'v.sqrt() + group["eps"]', '(v + group["eps"]).sqrt()', "ranker", "optimiser"),
    # data
    Fault("shuffled", C, "shuffle=False", "shuffle=True", "net", None),
    Fault("wrong normalisation", C, "/ 0.25", "/ 0.225", "net", None),
    Fault("labels shifted in the data set", C, "self.labels[i]", "(self.labels[i] + 1) % 5", "criterion", None),
    Fault("other tokens", T, "return torch.randint(0, VOCAB, (BATCH, TIME + 1), generator=g)", "return (torch.randint(0, VOCAB, (BATCH, TIME + 1), generator=g) + 1) % VOCAB", "model", None),
    Fault("batch of another step", T, "manual_seed(100 + step)", "manual_seed(101 + step)", "model", None),
    # weights
    Fault("other initial weights", T, "self.head = nn.Linear(D, VOCAB, bias=False)", "self.head = nn.Linear(D, VOCAB, bias=False); nn.init.normal_(self.head.weight, std=0.02)", "head", None),
)  # fmt: skip
