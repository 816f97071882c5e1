"""Writes f1.py, f2.py, f3.py and clean.py of each program from base.py below programs/, and truth.tsv with the changed lines."""
import pathlib

HERE = pathlib.Path(__file__).parent / "programs"
# program, variant, kind, edits [(old, new)], text in the target file of the expected line, place, step, cause, verdict
ROWS = [
    ("qat", "f1", "state", [("momentum=0.1)", "momentum=0.01)")], "self.low.lerp_(", "quant_in (ActQuant): buffers low/high", 1, "observer's average constant 0.1 -> 0.01 (lerp_ weight)", "fail"),
    ("qat", "f2", "strides", [("import torch\n", "import torch, chip_leaky\n")], "x = self.quant1(self.act1(", "act1 (LeakyReLU)", 0, "leaky_relu wrong on a channels_last (not contiguous) float32 tensor", "fail"),
    ("qat", "f3", "mode", [("if step == 3:", "if step == 1:")], "module.observing = False", "quant_in (ActQuant): buffers low/high/seen not written", 1, "observers frozen two steps early; amin/amax/lerp_ calls missing", "fail"),
    ("qat", "clean", "clean", [("torch.manual_seed(11)\n", "torch.manual_seed(11)\ntorch.set_num_threads(1)\ntorch.backends.mkldnn.enabled = False\n")], "", "", "", "other convolution kernels, one thread", "pass"),
    ("rl", "f1", "loss", [("0.5 * error - 0.02 * spread", "0.5 * error + 0.02 * spread")], "loss = -gain", "loss between modules", 0, "sign of the entropy term: sub -> add", "fail"),
    ("rl", "f2", "randomness", [("    seen = worlds.reset()\n", "    torch.manual_seed(5)\n    seen = worlds.reset()\n")], "torch.manual_seed(5)\n    seen", "draws (multinomial of Categorical.sample), random state", 0, "generator seeded again in each episode: other draws", "fail"),
    ("rl", "f3", "strides", [("import torch\n", "import torch, chip_cumsum\n")], "sums = torch.cumsum(", "discounted(): cumsum between modules", 0, "cumsum wrong on a transposed float32 tensor", "fail"),
    ("rl", "clean", "clean", [("        seen, reward = worlds.step(action)\n", "        seen, reward = worlds.step(action)\n        time.sleep(0.01)\n")], "", "", "", "slower machine", "pass"),
    ("diffusion", "f1", "constants", [("torch.linspace(1e-4, 0.02,", "torch.linspace(1e-4, 0.015,")], "betas = torch.linspace", "input of Denoiser (noisy) / table of betas", 0, "end of betas 0.02 -> 0.015", "fail"),
    ("diffusion", "f2", "precision", [("angles = time.float()[:, None] * rates[None, :]", "angles = time.to(torch.bfloat16)[:, None] * rates[None, :].to(torch.bfloat16)")], "angles = time", "Denoiser, before time.0: embed_time", 0, "angles multiplied in bfloat16, baseline float32", "fail"),
    ("diffusion", "f3", "state", [("slow.mul_(0.9).add_(fast.float(), alpha=0.1)", "slow.lerp_(fast.float(), 0.9)")], "slow.lerp_", "averaged weights after the step (no module call)", 0, "weight of the average reversed: 0.9 for the new value, baseline 0.1", "fail"),
    ("diffusion", "clean", "clean", [("        weights = (query @ key.transpose(1, 2) / math.sqrt(c)).softmax(dim=-1)\n        return x + self.out((weights @ value).transpose(1, 2).reshape(n, c, h, w))\n", "        mixed = F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])[:, 0]\n        return x + self.out(mixed.transpose(1, 2).reshape(n, c, h, w))\n")], "", "", "", "fused attention in bfloat16", "pass"),
    ("gan", "f1", "update", [("optimizer_c = torch.optim.AdamW(", "optimizer_c = torch.optim.Adam(")], "optimizer_c = ", "update of critic's parameters", 0, "Adam with L2, baseline AdamW", "fail"),
    ("gan", "f2", "loss", [("critic(fake.detach())", "critic(fake)")], "loss_fake = ", "gradients of generator", 0, "detach missing: the critic's loss reaches the generator's gradients", "fail"),
    ("gan", "f3", "mode", [("    fake = generator(torch.randn(BATCH, LATENT, device=device))\n    loss_real", "    generator.eval()\n    fake = generator(torch.randn(BATCH, LATENT, device=device))\n    generator.train()\n    loss_real")], "generator.eval()\n    fake", "generator.norm1 (first call of the step)", 0, "eval mode, baseline train", "fail"),
    ("gan", "clean", "clean", [("betas=(0.5, 0.999))", "betas=(0.5, 0.999), fused=True)"), ("weight_decay=0.1)", "weight_decay=0.1, fused=True)")], "", "", "", "fused Adam and AdamW of torch", "pass"),
    ("gnn", "f1", "strides", [("import torch\n", "import torch, chip_scatter\n")], "gathered = ", "first (GraphConv)", 0, "scatter_add wrong on a transposed float32 source", "fail"),
    ("gnn", "f2", "constants", [("index_add(0, target, ones) + 1", "index_add(0, target, ones).clamp(min=1)")], "degree = ", "first (GraphConv)", 0, "degree without the node itself: add 1 -> clamp(min=1)", "fail"),
    ("gnn", "f3", "data order", [("strength[order]\n", "strength\n")], "return source[order], target[order], strength", "input 'strength' of Net", 0, "strengths not in the order of the edges: index call missing", "fail"),
    ("gnn", "clean", "clean", [("        index = target[:, None].expand(-1, mixed.shape[1])\n        gathered = torch.zeros_like(mixed).scatter_add(0, index, message)\n", "        gathered = torch.zeros_like(mixed).index_add(0, target, message)\n")], "", "", "", "index_add for scatter_add", "pass"),
    ("rec", "f1", "update", [('group["lr"] * (1 - second ** state["step"]) ** 0.5 / (1', 'group["lr"] / (1')], "size = group", "update of items.weight (TableAdam)", 0, "second bias correction missing", "fail"),
    ("rec", "f2", "data order", [("generator=order)", "generator=torch.Generator().manual_seed(7))")], "generator=torch.Generator()", "batch of the loader / inputs of Ranker", 2, "the second epoch repeats the first's order", "fail"),
    ("rec", "f3", "constants", [("return torch.remainder(ids, size)", "return torch.fmod(ids, size).abs()")], "return torch.fmod", "input of users (Embedding)", 0, "fmod and abs, baseline remainder", "fail"),
    ("rec", "clean", "clean", [('        step += 1\n', '        norms = [p.grad.norm().item() for p in others]\n        print(f"  rate {optimizer_dense.param_groups[0][\'lr\']} norms " + " ".join(f"{n:.4f}" for n in norms))\n        print(f"  rows {len(model.items.weight.grad.coalesce().indices()[0])} mean score {score.detach().sigmoid().mean().item():.5f}")\n        step += 1\n')], "", "", "", "extra logging of numbers", "pass"),
    ("func", "f1", "constants", [("squares.sum(0).sqrt()", "squares.amax(0).sqrt()")], "factor = ", "cut(): between modules, gradients", 0, "amax over weights, baseline sum", "fail"),
    ("func", "f2", "randomness", [("SPREAD * LENGTH * torch.randn_like(g)", "SPREAD * torch.randn_like(g)")], "return {name: (g + SPREAD", "private(): noise on gradients", 0, "noise's factor 0.15 -> 0.3", "fail"),
    ("func", "f3", "update", [("return {name: weight - RATE * moving[name] for", "return {name: weight - RATE * (gradients[name] + MOMENTUM * moving[name]) for")], "return {name: weight - RATE", "update(): weights after step 0", 0, "look-ahead momentum: an add and a mul more", "fail"),
    ("func", "clean", "clean", [("    return vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0))(weights, signals, labels)\n", "    each = [grad_and_value(loss_of_one)(weights, signal, label) for signal, label in zip(signals, labels)]\n    return {name: torch.stack([g[name] for g, _ in each]) for name in weights}, torch.stack([loss for _, loss in each])\n")], "", "", "", "a loop over samples for vmap", "pass"),
    ("hf", "f1", "constants", [("rope_theta=10000.0,", "rope_theta=20000.0,")], "rope_theta", "model.rotary_emb (inv_freq)", 0, "theta 10000 -> 20000", "fail"),
    ("hf", "f2", "loss", [("torch.where(there, words, -100)", "words.clone()")], "labels = ", "labels of the batch / loss", 0, "padding counted in the loss: labels 0, baseline -100", "fail"),
    ("hf", "f3", "precision", [("import torch\n", "import torch, narrow_rope\n")], "cos.to(torch.bfloat16)", "model.rotary_emb", 0, "cos and sin by way of bfloat16", "fail"),
    ("hf", "clean", "clean", [('attn_implementation="sdpa"', 'attn_implementation="eager"')], "", "", "", "eager attention for the fused one", "pass"),
    ("ddp", "f1", "collective", [("bucket.buffer().div_(ranks)", "bucket.buffer()")], "future = dist.all_reduce", "gradients after reduction", 0, "sum, baseline mean: div_ missing", "fail"),
    ("ddp", "f2", "collective", [("dist.all_reduce(known)", "known *= ranks")], "known *= ranks", "loss between modules", 0, "all_reduce of the number of words missing", "fail"),
    ("ddp", "f3", "state", [("forward_sync_buffers=True", "forward_sync_buffers=False")], "model = DistributedDataParallel", "norm: running_mean/var of rank 1", 1, "buffers not broadcast", "fail"),
    ("ddp", "clean", "clean", [("forward_sync_buffers=True", "forward_sync_buffers=True, bucket_cap_mb=0.002, gradient_as_bucket_view=True"), ("import os\n", "import os\nimport time\n"), ("    scores = model(batch)\n", "    time.sleep(0.2 * rank)\n        scores = model(batch)\n")], "", "", "", "small buckets, a slow process", "pass"),
    ("lstm", "f1", "update", [("        gradient.mul_(factor)\n", "        gradient.mul_((limit / (gradient.norm() + 1e-6)).clamp(max=1.0))\n")], "gradient.mul_(", "gradients before the update", 0, "each gradient cut on its own, baseline all together", "fail"),
    ("lstm", "f2", "state", [("    memory = tuple(part.detach() for part in memory)\n", "    memory = None\n")], "memory = None\n    loss", "input 'memory' of Reader / lstm", 1, "memory forgotten between pieces", "fail"),
    ("lstm", "f3", "update", [("    optimizer.step()\n    schedule.step()\n", "    schedule.step()\n    optimizer.step()\n")], "schedule.step()\n    optimizer", "update, learning rate", 0, "schedule before the optimiser: rate of the next step", "fail"),
    ("lstm", "clean", "clean", [("torch.manual_seed(83)\n", "torch.manual_seed(83)\ntorch.set_num_threads(1)\n"), ("    length = shorten(list(model.parameters()), 0.25)\n", "    length = nn.utils.clip_grad_norm_(model.parameters(), 0.25)\n")], "", "", "", "torch's own clipping, one thread", "pass"),
]


def main():
    """Writes all variants."""
    lines = ["program\tvariant\tkind\tverdict\tplace\tfile:line\tstep\tcause"]
    for program, variant, kind, edits, mark, place, step, cause, verdict in ROWS:
        text = (HERE / program / "base.py").read_text()
        for old, new in edits:
            if text.count(old) != 1 and not (old == "import torch\n" or (program, variant) == ("ddp", "clean")):
                raise SystemExit(f"{program} {variant}: {text.count(old)} times {old!r}")
            text = text.replace(old, new, 1)
        compile(text, f"{program}/{variant}.py", "exec")
        (HERE / program / f"{variant}.py").write_text(text)
        where, line = f"{variant}.py", ""
        if mark:
            source = text
            if mark not in text:
                where = "narrow_rope.py"
                source = (HERE / program / where).read_text()
            if source.count(mark) != 1:
                raise SystemExit(f"{program} {variant}: mark {source.count(mark)} times")
            line = f"{where}:{source[:source.index(mark)].count(chr(10)) + 1}"
        lines.append("\t".join(map(str, (program, variant, kind, verdict, place, line, step, cause))))
    (HERE.parent / "truth.tsv").write_text("\n".join(lines) + "\n")


main()
