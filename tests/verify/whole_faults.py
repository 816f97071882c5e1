"""Faults outside the modules of whole programs, written before the code that looks for them.

`where` names the phases that are right for a fault: `input` (values given to a model), `loss`,
`gradients` (between `.grad` and the update), `update` (parameters and what is kept beside them),
`state` (buffers, copies, random numbers), `mode`, `schedule`, `output` (what is made after the last
model call), `file` (what is written).
`late` faults begin after the recorded steps 0 to 2.
"""

# ruff: noqa: E501  lines of programs, as tables

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class WholeFault:
    """Text to replace in a program, and where the verdict must place it."""

    name: str
    program: str
    old: str
    new: str
    where: str  # phases, separated by blanks
    late: bool = False

    def source(self) -> str:
        """The program with the fault in it."""
        text = (PROGRAMS / f"whole_{self.program}.py").read_text(encoding="utf-8")
        assert self.old in text, (self.name, self.old)
        return text.replace(self.old, self.new, 1)


L, C, R, G, P, D, F = "lm", "cnn", "ctr", "gan", "rl", "diffusion", "functional"
S, T = "loader", "speech"
W = WholeFault

WHOLE_FAULTS = (
    # loss
    W("loss times 1.1", L, "/ mask.sum()", "/ mask.sum() * 1.1", "loss"),
    W("padding counted", L, "/ mask.sum()", "/ mask.numel()", "loss"),
    W("padding not masked", L, "(labels != PAD).flatten()", "(labels >= PAD).flatten()", "loss"),
    W("other smoothing", L, "label_smoothing=0.1", "label_smoothing=0.05", "loss"),
    W("z-loss left out", L, "(nll + 1e-3 * z)", "(nll + 0 * z)", "loss"),
    W("z-loss ten times less", L, "1e-3 * z", "1e-4 * z", "loss"),
    W("labels shifted twice", L, "loss = loss_of(logits, labels) / 2", "loss = loss_of(logits, labels.roll(-1, 1)) / 2", "loss"),
    W("loss in bfloat16", L, "logits = logits.float()\n", "logits = logits.bfloat16()\n", "loss"),
    W("not divided by the parts", L, "labels) / 2", "labels)", "loss"),
    W("share of mixing lost in the loss", C, "(1 - share) * F.one_hot(y[order], 7)", "(1 - share) * F.one_hot(y, 7)", "loss"),
    W("penalty without the bias", C, "for w in net.head.parameters())", "for w in [net.head.weight])", "loss"),
    W("penalty squared", C, "w.float().abs().sum()", "w.float().pow(2).sum()", "loss"),
    W("sum for mean", C, ".sum(-1).mean()\n    penalty", ".sum(-1).sum()\n    penalty", "loss"),
    W("class weight", R, "clicked > 0, 2.0, 1.0", "clicked > 0, 2.2, 1.0", "loss"),
    W("pair loss reversed", R, "negative[None, :] - positive[:, None]", "positive[:, None] - negative[None, :]", "loss"),
    W("pair loss left out", R, "loss = loss + 0.5 * pair", "loss = loss + 0.0 * pair", "loss"),
    W("hinge margin", G, "F.relu(1 + on_fake.float())", "F.relu(0.9 + on_fake.float())", "loss"),
    W("penalty one-sided", G, "((slope.norm(dim=1) - 1) ** 2)", "(F.relu(slope.norm(dim=1) - 1) ** 2)", "loss"),
    W("penalty weight", G, "10.0 * ((slope", "9.0 * ((slope", "loss"),
    W("penalty detached", G, "create_graph=True)[0]", "create_graph=True)[0].detach()", "loss"),
    W("generator's sign", G, "g_loss = -judged", "g_loss = judged", "loss"),
    W("discount", P, "0.99 * following[1:]", "0.95 * following[1:]", "loss"),
    W("end of an episode ignored", P, "following[1:] * ~done", "following[1:]", "loss"),
    W("lambda of the advantages", P, "0.99 * 0.95 * running", "0.99 * 0.9 * running", "loss"),
    W("advantages not centred", P, "(advantage - advantage.mean())", "(advantage)", "loss"),
    W("biased deviation", P, "advantage.std()", "advantage.std(correction=0)", "loss"),
    W("range of the clip", P, "0.8, 1.2", "0.9, 1.1", "loss"),
    W("max for min", P, "torch.min(ratio", "torch.max(ratio", "loss"),
    W("entropy's sign", P, "- 0.01 * entropy", "+ 0.01 * entropy", "loss"),
    W("signal weight without its limit", D, "torch.clamp(snr, max=5.0)", "torch.clamp(snr, max=50.0)", "loss"),
    W("weight by the wrong signal", D, "snr = (a / (1 - a))", "snr = (a / (1 - a * a))", "loss"),
    W("smoothing of a functional loss", F, "label_smoothing=0.05", "label_smoothing=0.0", "loss"),
    W("functional loss in half", F, "loss = F.cross_entropy(logits.float(), y, label_smoothing=0.05)", "loss = F.cross_entropy(logits.bfloat16(), y, label_smoothing=0.05)", "loss"),
    # gradient of the loss
    W("loss detached in a part", L, "((nll + 1e-3 * z) * mask)", "((nll + 1e-3 * z.detach()) * mask)", "loss"),
    W("values moved by a little", P, "following = target(states)[1].float()\n", "following = target(states)[1].float() + 1e-2\n", "loss"),
    W("hook on the logits", L, "        loss = loss_of(logits, labels) / 2", "        logits.register_hook(lambda g: 1.5 * g)\n        loss = loss_of(logits, labels) / 2", "loss"),
    W("custom gradient without its mask", F, "grad * (x.abs() < 2).to(grad.dtype)", "grad", "loss update"),
    # what is given to models
    W("mixed with another order", C, "mixed = share * x + (1 - share) * x[order]", "mixed = share * x + (1 - share) * x", "input"),
    W("images scaled", C, "(x - 0.5) / 0.25", "(x - 0.5) / 0.26", "input"),
    W("logarithm without the one", R, "torch.log1p(raw)", "torch.log(raw + 1e-3)", "input"),
    W("noise schedule", D, "0.05, STEPS)", "0.02, STEPS)", "input"),
    W("root of the signal left out", D, "a.sqrt() * clean", "a * clean", "input"),
    W("sample not detached", G, "mix = (0.5 * truth + 0.5 * fake)", "mix = (0.4 * truth + 0.6 * fake)", "input"),
    # gradients
    W("clipped lower", L, "model.parameters(), 0.5)", "model.parameters(), 0.4)", "gradients"),
    W("not clipped", L, "    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n", "", "gradients"),
    W("clipped by value lower", C, "clamp_(-0.2, 0.2)", "clamp_(-0.02, 0.02)", "gradients"),
    W("not unscaled before clipping", C, "    scaler.unscale_(optimiser)\n", "", "gradients update"),
    W("norm without the root", P, "norm = torch.sqrt(sum(", "norm = (sum(", "gradients"),
    W("one part accumulated", L, "for part in range(2):", "for part in range(1):", "loss gradients mode input"),
    W("gradients not cleared", L, "    optimiser.zero_grad()\n", "", "gradients"),
    W("second part lost", L, "        loss.backward()\n", "        optimiser.zero_grad(); loss.backward()\n", "gradients"),
    # updates
    W("rate of a hand-made optimiser", R, "p -= (rate * g", "p -= (1.1 * rate * g", "update"),
    W("decay of a hand-made optimiser", R, "+ 1e-4 * p.float()", "+ 1e-3 * p.float()", "update"),
    W("squares not summed", R, "+ g * g", "* 0.9 + g * g", "update"),
    W("eps inside the root", R, "(total[name].sqrt() + eps)", "((total[name] + eps).sqrt())", "update"),
    W("momentum by hand", F, "speed[n].mul_(0.9)", "speed[n].mul_(0.8)", "update"),
    W("rate of functional SGD", F, "p.sub_(0.1 *", "p.sub_(0.09 *", "update"),
    W("betas of the critic", G, "lr=2e-3, betas=(0.5, 0.9)", "lr=2e-3, betas=(0.9, 0.9)", "update"),
    W("decay on the biases", L, '"weight_decay": 0.0', '"weight_decay": 0.1', "update"),
    # buffers and copies
    W("router bias with the wrong sign", L, "moe.bias += 0.01", "moe.bias -= 0.01", "state"),
    W("router bias faster", L, "moe.bias += 0.01", "moe.bias += 0.02", "state"),
    W("load not cleared", L, "            moe.load.zero_()\n", "", "state"),
    W("average of a language model", L, "mine.mul_(0.9).add_(theirs, alpha=0.1)", "mine.mul_(0.99).add_(theirs, alpha=0.01)", "state"),
    W("average before the update", L, "    optimiser.step()\n    schedule.step()", "    schedule.step()", "state update mode"),
    W("average of a network", C, "get_ema_multi_avg_fn(0.9)", "get_ema_multi_avg_fn(0.99)", "state"),
    W("average without buffers", C, ", use_buffers=True", "", "state"),
    W("shadow of a generator", G, "a.lerp_(b, 0.05)", "a.lerp_(b, 0.5)", "state"),
    W("shadow never changed", G, "            for a, b in zip(shadow", "            for a, b in zip(copy.deepcopy(shadow)", "state"),
    W("target network too fast", P, "0.99 * a + 0.01 * b", "0.9 * a + 0.1 * b", "state"),
    W("target network's terms swapped", P, "0.99 * a + 0.01 * b", "0.01 * a + 0.99 * b", "state"),
    W("decay of an average of tensors", D, "Average(net, 0.95)", "Average(net, 0.995)", "state"),
    # modes
    W("eval forgotten in validation", L, "    if step % 2 == 1:\n        model.eval()", "    if step % 2 == 1:\n        pass", "mode"),
    W("eval forgotten before decoding", L, 'model.eval()\nwith torch.no_grad():\n    ids = batch(901', 'model.train()\nwith torch.no_grad():\n    ids = batch(901', "mode", late=True),
    W("train forgotten after validation", L, "    model.train()\n    for part", "    for part", "mode"),
    W("eval forgotten for an image network", C, "net.eval()\nwith", "with", "mode", late=True),
    W("validation with gradients", L, "        model.eval()\n        with torch.no_grad():", "        model.eval()\n        with torch.enable_grad():", "mode"),
    W("one validation less", L, "step % 2 == 1", "step % 4 == 1", "mode", late=True),
    # decoding
    W("position off by one after the fourth token", L, "model(token, past, position)", "model(token, past, position + (position > 8))", "input mode forward", late=True),
    W("cache one short after the fourth token", L, "logits, past = model(token, past, position)", "past = [(k[:, :, 1:], v[:, :, 1:]) for k, v in past] if position == 9 else past; logits, past = model(token, past, position)", "input mode", late=True),
    W("cache dropped inside", L, "if past is not None:\n            k, v", "if past is not None and past[0].shape[2] < 8:\n            k, v", "forward mode input", late=True),
    W("temperature", L, "(logits[:, -1:] / 0.7).argmax(-1)", "(logits[:, -1:] / 0.7).argmin(-1)", "input output", late=True),
    # schedules
    W("warm-up longer", L, "(s + 1) / 4", "(s + 1) / 5", "schedule update"),
    W("late drop of the rate", L, "else 0.1)", "else 0.2)", "schedule", late=True),
    W("milestone", C, "[5], gamma=0.1", "[6], gamma=0.1", "schedule state", late=True),
    W("gamma", C, "gamma=0.1", "gamma=0.5", "schedule state", late=True),
    W("cosine over more steps", D, "T_max=6", "T_max=7", "schedule update"),
    W("late drop of a hand-made rate", R, "0.5 ** (step // 5)", "0.5 ** (step // 6)", "schedule update", late=True),
    W("scaler grows sooner", C, "growth_interval=4", "growth_interval=2", "state loss"),
    # after the last model call
    W("calibration left out", R, "score + (1 - score) / prior", "score + (1 - score)", "output", late=True),
    W("votes not averaged", C, "(votes[:8] + votes[8:]) / 2", "votes[:8]", "output", late=True),
    W("guidance", D, "without + 3.0 *", "without + 2.0 *", "input output", late=True),
    W("sampler's order", D, "reversed(range(0, STEPS, 10))", "reversed(range(0, STEPS - 10, 10))", "input output mode", late=True),
    # order of data, random numbers, an optimiser of one's own
    W("another order of the samples", S, "manual_seed(5)", "manual_seed(6)", "input"),
    W("the order starts anew in every epoch", S, "    net.train()\n    total", "    net.train(); order.manual_seed(5)\n    total", "input state", late=True),
    W("order of later epochs", S, "    total = 0.0\n", "    total = 0.0\n    if epoch == 2:\n        order.manual_seed(11)\n", "input state", late=True),
    W("the last batch of an epoch is kept", S, "drop_last=True", "drop_last=False", "mode input", late=True),
    W("last samples of later epochs twice", S, "for x, y in loader:\n", "for x, y in loader:\n        x, y = (x, y) if step < 9 else (x[[0, 0, 2, 3, 4, 5, 6, 7]], y[[0, 0, 2, 3, 4, 5, 6, 7]])\n", "input", late=True),
    W("labels of later steps shifted", S, "loss = F.cross_entropy(logits.float(), y)", "y = y.roll(1) if step > 8 else y; loss = F.cross_entropy(logits.float(), y)", "loss input", late=True),
    W("augmentation less often", S, "random.random() < 0.5", "random.random() < 0.4", "input"),
    W("augmentation draws twice", S, "if random.random() < 0.5:", "random.random()\n        if random.random() < 0.5:", "input state"),
    W("augmentation seeded for every sample", S, "        x = self.x[i]\n", "        x = self.x[i]; np.random.seed(i)\n", "input state"),
    W("noise ten times larger", S, "torch.randn(len(x), 1) * 0.01", "torch.randn(len(x), 1) * 0.1", "input"),
    W("noise for each feature", S, "torch.randn(len(x), 1)", "torch.randn(len(x), 10)", "input state"),
    W("noise without a mean of zero", S, "torch.randn(len(x), 1)", "torch.rand(len(x), 1)", "input state"),
    W("random state set back after an epoch", S, "    net.eval()\n    right", "    net.eval(); torch.manual_seed(SEED)\n    right", "state input forward", late=True),
    W("validation draws", S, "    right, count = 0, 0\n", "    right, count = 0, 0; torch.rand(1)\n", "state input forward", late=True),
    W("Lion's second beta", S, "betas=(0.9, 0.99)", "betas=(0.9, 0.95)", "update"),
    W("Lion's warm-up longer", S, '["count"] / 4', '["count"] / 8', "update"),
    W("Lion's decay after the step", S, "                p.mul_(1 - group[\"lr\"] * group[\"weight_decay\"])\n", "                p.mul_(1 - group[\"weight_decay\"])\n", "update"),
    W("Lion warm from its sixth step on", S, "warm = min(1.0, state[\"count\"] / 4)", "warm = min(1.0, state[\"count\"] / 4) if state[\"count\"] < 6 else 0.5", "update state", late=True),
    W("late drop of a rate set by hand", S, "(step // 10)", "(step // 11)", "schedule update", late=True),
    W("loss printed per sample", S, "loss {total / len(loader):.5f}", "loss {total / len(data):.5f}", "output", late=True),
    W("accuracy over the wrong count", S, "right / count:.4f", "right / len(data):.4f", "output", late=True),
    W("entropy in bits", S, ".clamp_min(1e-9).log()", ".clamp_min(1e-9).log2()", "output", late=True),
    W("scores of the file reversed", S, "score.numpy())", "score.numpy()[::-1].copy())", "file", late=True),
    W("history without its last epoch", S, "json.dump(history,", "json.dump(history[:-1],", "file", late=True),
    W("weights saved before the end", S, '"net": net.state_dict()', '"net": {k: v * 0.9 for k, v in net.state_dict().items()}', "file", late=True),
    # speech
    W("window of the frames", T, "torch.hann_window(24)", "torch.hann_window(24, periodic=False)", "input"),
    W("power for amplitude", T, ".abs() ** 2", ".abs()", "input"),
    W("floor of the logarithm", T, "+ 1e-6)", "+ 1e-3)", "input"),
    W("one deviation for the batch", T, "x.std((1, 2), keepdim=True)", "x.std()", "input"),
    W("mask in time", T, "x[:, 3:5] = 0", "x[:, 3:6] = 0", "input"),
    W("mask filled with its mean", T, "x[:, 3:5] = 0", "x[:, 3:5] = 0.01", "input"),
    W("blank of CTC", T, "blank=0", "blank=8", "loss"),
    W("lengths of frames ignored", T, "labels, frames, lengths, blank", "labels, torch.full((4,), 20), lengths, blank", "loss"),
    W("CTC summed", T, "zero_infinity=True)", "zero_infinity=True, reduction='sum')", "loss"),
    W("norm of a bucket", T, "flat.norm().item() / 2.0", "flat.norm().item() / 1.0", "gradients"),
    W("buckets shifted by one", T, "        at += p.numel()\n", "        at += p.numel() - 1\n", "gradients"),
    W("Adagrad's eps", T, "lr=5e-2)", "lr=5e-2, eps=1e-3)", "update"),
    W("Adagrad begins above zero", T, "lr=5e-2)", "lr=5e-2, initial_accumulator_value=0.1)", "update"),
    W("patience of the plateau", T, "patience=1", "patience=2", "schedule", late=True),
    W("average taken one step later", T, "if step >= 3:", "if step >= 4:", "state", late=True),
    W("average without its first step", T, "/ taken)", "/ (taken + 1))", "state", late=True),
    W("average never put into the network", T, "        p.copy_(mine)\n", "        p.copy_(p)\n", "state output forward", late=True),
    W("eval forgotten before the search", T, "net.eval()\n", "", "mode", late=True),
    W("running mean in evaluation", T, "        if self.training:\n", "        if True:\n", "forward state", late=True),
    W("blank's discount", T, "-= 2.0", "-= 1.9", "output", late=True),
    W("length's power", T, "length**0.6", "length**0.5", "output", late=True),
    W("repeats not removed", T, "if t != u and t]", "if t]", "output", late=True),
    # decoding and what is between steps
    W("cache rolled", L, "logits, past = model(token, past, position)", "past = [(k.roll(1, 2), v) for k, v in past]; logits, past = model(token, past, position)", "input", late=True),
    W("values of the cache halved once", L, "logits, past = model(token, past, position)", "past = [(k, v * 0.5) for k, v in past] if position == 7 else past; logits, past = model(token, past, position)", "input", late=True),
    W("cache keeps one row more than it should", L, "past=None, start=0):\n", "past=None, start=0):\n        past = [(torch.cat([k[:, :, :1], k], 2), torch.cat([v[:, :, :1], v], 2)) for k, v in past] if past else None\n", "forward input mode", late=True),
    W("temperature of one step", L, "(logits[:, -1:] / 0.7).argmax(-1)", "(logits[:, -1:] / 0.7).argmax(-1) if position != 12 else logits[:, -1:].argsort(-1)[..., -2]", "input output", late=True),
    W("rate raised for one step", R, "0.5 ** (step // 5)", "(1.5 if step == 5 else 1) * 0.5 ** (step // 5)", "schedule update", late=True),
    W("decay dropped after the third step", R, "+ 1e-4 * p.float()", "+ (1e-4 if step < 3 else 1e-2) * p.float()", "update", late=True),
    W("weights moved between two steps", C, "    optimiser.zero_grad()", "    net.head.bias.data.add_(0.05 if step == 5 else 0.0)\n    optimiser.zero_grad()", "state update", late=True),
)  # fmt: skip
