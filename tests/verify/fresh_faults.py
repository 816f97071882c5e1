"""Faults in three more shapes of programs: an averaged generator with an optimiser that takes a closure
and a custom autograd function, a detector with boxes that are thinned out, a stream with a cache that
rolls. Written before `verify` ran on any of them. Words as in `whole_faults`.
"""

# ruff: noqa: E501  lines of programs, as tables

from __future__ import annotations

from tests.verify.whole_faults import WholeFault as W

E, B, S = "ema", "boxes", "stream"

FRESH_FAULTS = (
    # an averaged generator
    W("ema: clamp without its leak", E, "inside + 0.1 * (1 - inside)", "inside", "loss"),
    W("ema: leak of another size", E, "inside + 0.1 * (1 - inside)", "inside + 0.2 * (1 - inside)", "loss"),
    W("ema: clamp narrower", E, "Bounded.apply(b, -2.0, 2.0)", "Bounded.apply(b, -0.02, 0.02)", "loss"),
    W("ema: real labels not smoothed", E, "torch.full_like(a, 0.9)", "torch.full_like(a, 1.0)", "loss"),
    W("ema: drift of both", E, "1e-3 * (a**2).mean()", "1e-3 * (a**2 + b**2).mean()", "loss"),
    W("ema: parts not divided", E, "((loss + drift) / PARTS)", "(loss + drift)", "loss"),
    W("ema: last part only", E, "        real, noise = truth(step, part)\n", "        real, noise = truth(step, part); of_judge.zero_grad()\n", "gradients"),
    W("ema: clip lower", E, "judge.parameters(), 0.5)", "judge.parameters(), 0.25)", "gradients"),
    W("ema: warm-up of the judge", E, "0.25, 1.0, 4)", "0.25, 1.0, 5)", "schedule update"),
    W("ema: radius of the neighbour", E, "rho=0.05", "rho=0.08", "update schedule"),
    W("ema: not set back from the neighbour", E, "                p.sub_(e)\n", "                p.sub_(0.5 * e)\n", "update"),
    W("ema: second closure left out", E, "        with torch.enable_grad():\n            closure()\n        for", "        for", "update mode loss input"),
    W("ema: norm of each by itself", E, "rho\"] / (norm + 1e-12)", "rho\"] / (p.grad.float().norm() + 1e-12)", "update"),
    W("ema: second moment late", E, "value=1 - two)", "value=two)", "update"),
    W("ema: spread turned", E, "- 0.05 * spread", "+ 0.05 * spread", "loss"),
    W("ema: spread of rows", E, "made.float().std(0)", "made.float().std(1)", "loss"),
    W("ema: decay warms slower", E, "(1 + step) / (4 + step)", "(1 + step) / (6 + step)", "state"),
    W("ema: decay late", E, "min(0.95,", "min(0.95 if step < 5 else 0.8,", "state", late=True),
    W("ema: made by the fast one", E, "made = smooth(z)", "made = maker(z)", "output mode state forward", late=True),
    W("ema: not truncated", E, "z.clamp(-1.5, 1.5)", "z", "input", late=True),
    W("ema: spread by the root", E, "(made.var(0) - real.var(0))", "(made.std(0) - real.std(0))", "output", late=True),
    W("ema: noise of the wrong part", E, "truth(step, 10 + part)", "truth(step, part)", "input"),
    # a detector
    W("boxes: focus by the root", B, ".abs() ** 2.0", ".abs() ** 1.5", "loss"),
    W("boxes: smoothing lost", B, "wanted * 0.95 + 0.05 / CLASSES", "wanted * 1.0", "loss"),
    W("boxes: smoothing over all", B, "0.05 / CLASSES", "0.05", "loss"),
    W("boxes: plain overlap", B, "return both / either - (outer - either) / outer", "return both / either", "loss"),
    W("boxes: divided by cells", B, "right.sum() / many", "right.sum() / right.numel()", "loss"),
    W("boxes: beta of the distance", B, "beta=0.1", "beta=0.2", "loss"),
    W("boxes: weight of the overlap", B, "2.0 * near.mean()", "2.5 * near.mean()", "loss"),
    W("boxes: widths for corners", B, "a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)\n    both", "a[..., :2] + a[..., 2:], b[..., :2] + b[..., 2:])\n    both", "loss"),
    W("boxes: clipped lower", B, "net.parameters(), 0.4)", "net.parameters(), 0.1)", "gradients"),
    W("boxes: other normalisation", B, "x = (x - 0.2) / 0.6", "x = (x - 0.2) / 0.5", "input"),
    W("boxes: pictures of the step after", B, "enumerate(pictures(0, 10))", "enumerate(pictures(1, 10))", "input"),
    W("boxes: cycle's rise", B, "pct_start=0.3", "pct_start=0.4", "schedule update"),
    W("boxes: cells of the next picture", B, "pairs.append(boxes[row, cells])", "pairs.append(boxes[row - 1, cells])", "loss"),
    W("boxes: eval forgotten", B, "net.eval()\n", "", "mode", late=True),
    W("boxes: evaluation as it is", B, "made = net(((x - 0.2) / 0.6).to(kind))", "made = net(x.to(kind))", "input", late=True),
    W("boxes: classes without their weights", B, "weight = count.sum() / (CLASSES * count)", "weight = torch.ones(CLASSES)", "output state", late=True),
    W("boxes: thinned across classes", B, " or guess[cell] != guess[k] for", " for", "output", late=True),
    W("boxes: worst first", B, "best.argsort(descending=True)", "best.argsort()", "output", late=True),
    W("boxes: precision from zero", B, "torch.arange(1, len(ranked) + 1)", "torch.arange(2, len(ranked) + 2)", "output", late=True),
    W("boxes: count of classes in training alone", B, "        count += torch", "        if step < 6: count += torch", "state output", late=True),
    # a stream
    W("stream: smoothing", S, "0.9 * nll + 0.1 * even", "0.95 * nll + 0.05 * even", "loss"),
    W("stream: smoothing by the sum", S, "even = -logp.mean(-1)", "even = -logp.sum(-1)", "loss"),
    W("stream: padding in the divisor", S, "/ mask.sum()\n", "/ mask.numel()\n", "loss"),
    W("stream: loss in bfloat16", S, "F.log_softmax(logits.float(), -1)", "F.log_softmax(logits.bfloat16(), -1).float()", "loss"),
    W("stream: divisor of the parts", S, "(loss / PARTS)", "(loss / 2)", "loss"),
    W("stream: boundary one early", S, "if (micro + 1) % PARTS:", "if micro % PARTS:", "gradients update loss mode input"),
    W("stream: clip", S, "0.7 / (norm + 1e-6)", "0.5 / (norm + 1e-6)", "update gradients"),
    W("stream: rate falls faster", S, "(3 / updates) ** 0.5)", "(3 / updates) ** 1.0)", "update", late=True),
    W("stream: correction left out", S, "/ (1 - 0.9**updates)", "/ 1.0", "update"),
    W("stream: decay on vectors", S, "(p.dim() > 1)", "(p.dim() > 0)", "update"),
    W("stream: second moment", S, "addcmul_(g, g, value=0.05)", "addcmul_(g, g, value=0.01)", "update state"),
    W("stream: first tokens not kept", S, "k = torch.cat([k[:, :, :SINK], k[:, :, -WINDOW:]], 2)\n                v = torch.cat([v[:, :, :SINK], v[:, :, -WINDOW:]], 2)", "k, v = k[:, :, -WINDOW - SINK :], v[:, :, -WINDOW - SINK :]", "forward input", late=True),
    W("stream: values of the window late", S, "v[:, :, -WINDOW:]], 2)", "v[:, :, -WINDOW - 1 : -1]], 2)", "forward input", late=True),
    W("stream: kept turned", S, "q, k = turned(q, places[-t:]), turned(k, places)", "q, k = turned(q, places[-t:]), turned(k, places + (k.shape[2] > 7))", "forward", late=True),
    W("stream: base of the turn", S, "1000.0 **", "10000.0 **", "forward"),
    W("stream: heat", S, "9, 0.7)", "9, 0.8)", "output input", late=True),
    W("stream: nucleus", S, "< 0.85", "< 0.6", "output input", late=True),
    W("stream: beams by the plain score", S, "** 0.8)", "** 0.0)", "output input", late=True),
    W("stream: beam's first token twice", S, "said if past is None else said[-1:]", "said if past is None else said[-2:]", "input mode", late=True),
    W("stream: score of all", S, "score.item() / 9", "score.item() / 8", "output", late=True),
)  # fmt: skip
