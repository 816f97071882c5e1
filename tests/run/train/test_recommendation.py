"""Recommendation models against their papers' formulas, written a second time in numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from joymigrate.errors import JoyError  # noqa: E402
from joymigrate.run.train import recommendation  # noqa: E402
from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs  # noqa: E402

B, F, D, G, L, T = 5, 3, 8, 2, 6, 2
K, V = 3, 5
SHAPE = InputShape(F, G, D, (L,), 1, (V,) * K)


def inputs(seed: int = 0) -> RowInputs:
    made = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([6, 3, 0, 1, 4])
    mask = torch.arange(L) < lengths[:, None]
    events = torch.randn(B, L, D, generator=made) * mask[..., None]
    return RowInputs(
        torch.randn(B, F, D, generator=made),
        torch.randn(B, G, generator=made),
        torch.randn(B, generator=made),
        ((events, mask, torch.randn(B, D, generator=made)),),
        (torch.randint(0, 10**6, (B, L), generator=made).sort().values,),
        ((torch.randint(-1, V, (B, L, K), generator=made), torch.randint(V, (B, K))),),
    )


def model(name: str, shape: InputShape = SHAPE, **sizes: Any) -> Any:
    torch.manual_seed(1)
    kind = recommendation.find(name)
    made = kind.MODEL(shape, **{**kind.SIZES, "dropout": 0.0, **sizes} if "dropout" in kind.SIZES
                      else {**kind.SIZES, **sizes})  # fmt: skip
    for parameter in made.parameters():  # biases and norms too: no term may be missing
        torch.nn.init.normal_(parameter, std=0.3)
    return made.double().eval()


def doubled(x: RowInputs) -> RowInputs:
    events = tuple((e.double(), m, t.double()) for e, m, t in x.events)
    assert x.linear_B is not None
    rest = (x.linear_B.double(), events, x.times, x.codes)
    return RowInputs(x.fields_BFD.double(), x.numbers_BG.double(), *rest)


def weights(module: Any) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in module.state_dict().items()}


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def run_mlp(w: dict[str, np.ndarray], name: str, x: Any, act: Any = None, last: bool = True) -> Any:
    """Linear layers of a Sequential, by their numbers; the last one without an activation."""
    act = act or (lambda v: np.maximum(v, 0))
    numbers = sorted({int(k[len(name) + 1 :].split(".")[0]) for k in w if k.startswith(f"{name}.")})
    for number in numbers:
        x = x @ w[f"{name}.{number}.weight"].T + w[f"{name}.{number}.bias"]
        if number != numbers[-1] or not last:
            x = act(x)
    return x


def check(name: str, expected: Any, made: Any, x: RowInputs) -> None:
    # float64 sums in another order: 1e-12 is a thousand times their rounding
    assert np.allclose(made(x).detach().numpy(), expected, rtol=1e-10, atol=1e-12), name


def flat_of(x: RowInputs) -> Any:
    return np.concatenate([x.fields_BFD.numpy().reshape(B, -1), x.numbers_BG.numpy()], 1)


def test_wide_deep() -> None:
    x, made = doubled(inputs()), model("wide_deep")
    w = weights(made)
    wide = x.numbers_BG.numpy() @ w["wide.weight"].T + w["wide.bias"]
    expected = run_mlp(w, "deep", flat_of(x)) + wide + x.linear_B.numpy()[:, None]  # type: ignore[union-attr]
    check("wide_deep", expected, made, x)


def test_deepfm() -> None:
    x, made = doubled(inputs()), model("deepfm")
    w, v = weights(made), x.fields_BFD.numpy()
    pairs = sum((v[:, i] * v[:, j]).sum(-1) for i in range(F) for j in range(i + 1, F))
    first = x.numbers_BG.numpy() @ w["first.weight"].T + w["first.bias"]
    expected = run_mlp(w, "deep", flat_of(x)) + first + (pairs + x.linear_B.numpy())[:, None]  # type: ignore[union-attr]
    check("deepfm", expected, made, x)


def test_dcn_with_full_matrices() -> None:
    x, made = doubled(inputs()), model("dcn", crosses=2)
    w, x0 = weights(made), flat_of(x)
    xl = x0
    for layer in range(2):
        name = f"crosses.{layer}.linear"
        xl = x0 * (xl @ w[f"{name}.weight"].T + w[f"{name}.bias"]) + xl
    both = np.concatenate([xl, run_mlp(w, "deep", x0, last=False)], 1)
    check("dcn", both @ w["output.weight"].T + w["output.bias"], made, x)


def test_dcn_with_a_mixture_of_low_rank_experts() -> None:
    x = doubled(inputs())
    made = model("dcn", crosses=1, rank=3, experts=2, structure="stacked")
    w, x0 = weights(made), flat_of(x)
    gates = softmax(x0 @ w["crosses.0.gate.weight"].T)
    total = 0.0
    for i in range(2):
        down, middle, up = (w[f"crosses.0.{part}"][i] for part in ("down", "middle", "up"))
        inner = np.tanh(np.tanh(x0 @ down) @ middle) @ up + w["crosses.0.bias"]
        total = total + gates[:, i : i + 1] * (x0 * inner)
    check("dcn mixture", run_mlp(w, "deep", total + x0), made, x)


def test_dlrm() -> None:
    x, made = doubled(inputs()), model("dlrm")
    w = weights(made)
    dense = run_mlp(w, "bottom", x.numbers_BG.numpy(), last=False)
    z = np.concatenate([dense[:, None], x.fields_BFD.numpy()], 1)
    dots = [(z[:, i] * z[:, j]).sum(-1) for i in range(F + 1) for j in range(i)]
    check("dlrm", run_mlp(w, "top", np.concatenate([dense, np.stack(dots, 1)], 1)), made, x)


def events_of(x: RowInputs, row: int) -> tuple[Any, Any]:
    events, mask, target = x.events[0]
    return events[row][mask[row]].numpy(), target[row].numpy()


def test_din() -> None:
    x, made = doubled(inputs()), model("din")
    w = weights(made)
    interests = np.zeros((B, D))
    for row in range(B):
        events, q = events_of(x, row)
        for e in events:
            unit = np.concatenate([q, e, q - e, q * e])
            interests[row] += run_mlp(w, "units.0.layers", unit, sigmoid) * e
    check("din", run_mlp(w, "deep", np.concatenate([flat_of(x), interests], 1)), made, x)


def test_dien() -> None:
    x, made = doubled(inputs()), model("dien")
    w = weights(made)
    p = "interests.0."
    interests = np.zeros((B, D))
    for row in range(B):
        events, q = events_of(x, row)
        h, states = np.zeros(D), []
        for e in events:
            gi = w[f"{p}extract.weight_ih_l0"] @ e + w[f"{p}extract.bias_ih_l0"]
            gh = w[f"{p}extract.weight_hh_l0"] @ h + w[f"{p}extract.bias_hh_l0"]
            r, z = sigmoid(gi[:D] + gh[:D]), sigmoid(gi[D : 2 * D] + gh[D : 2 * D])
            h = (1 - z) * np.tanh(gi[2 * D :] + r * gh[2 * D :]) + z * h
            states.append(h)
        if not states:
            continue
        a = softmax(np.array([w[f"{p}attention.weight"] @ s @ q for s in states]))
        h = np.zeros(D)
        for s, weight in zip(states, a, strict=True):
            gi = w[f"{p}evolve.inputs.weight"] @ s + w[f"{p}evolve.inputs.bias"]
            gh = w[f"{p}evolve.states.weight"] @ h + w[f"{p}evolve.states.bias"]
            r, u = sigmoid(gi[:D] + gh[:D]), sigmoid(gi[D : 2 * D] + gh[D : 2 * D]) * weight
            h = (1 - u) * h + u * np.tanh(gi[2 * D :] + r * gh[2 * D :])
        interests[row] = h
    check("dien", run_mlp(w, "deep", np.concatenate([flat_of(x), interests], 1)), made, x)


def test_mmoe() -> None:
    x, made = doubled(inputs()), model("mmoe", InputShape(F, G, D, (L,), T), experts=3)
    w, flat = weights(made), flat_of(x)
    experts = np.stack([run_mlp(w, f"experts.{i}", flat, last=False) for i in range(3)], 1)
    towers = []
    for task in range(T):
        gate = softmax(flat @ w[f"gates.{task}.weight"].T)
        towers.append(run_mlp(w, f"towers.{task}", (gate[..., None] * experts).sum(1)))
    check("mmoe", np.concatenate(towers, 1), made, x)


def test_ple() -> None:
    x, made = doubled(inputs()), model("ple", InputShape(F, G, D, (L,), T))
    w = weights(made)
    tasks, common = [flat_of(x)] * T, flat_of(x)
    for level in range(2):
        p = f"levels.{level}"
        own = [[run_mlp(w, f"{p}.own.{t}.{e}", tasks[t], last=False) for e in range(2)]
               for t in range(T)]  # fmt: skip
        shared = [run_mlp(w, f"{p}.shared.{e}", common, last=False) for e in range(2)]

        def mix(gate: str, x: Any, experts: list[Any]) -> Any:
            shares = softmax(x @ w[f"{gate}.weight"].T)
            return sum(shares[:, i : i + 1] * one for i, one in enumerate(experts))

        new = [mix(f"{p}.gates.{t}", tasks[t], own[t] + shared) for t in range(T)]
        if level == 0:
            common = mix(f"{p}.shared_gate", common, own[0] + own[1] + shared)
        tasks = new
    check(
        "ple", np.concatenate([run_mlp(w, f"towers.{t}", tasks[t]) for t in range(T)], 1), made, x
    )


def norm(w: dict[str, np.ndarray], name: str, x: Any, eps: float = 1e-5) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]
        + w[f"{name}.bias"]
    )


def linear(w: dict[str, np.ndarray], name: str, x: Any) -> Any:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def attend(
    w: dict[str, np.ndarray], p: str, q_in: Any, kv_in: Any, heads: int, causal: bool
) -> Any:
    q, k, v = (
        linear(w, f"{p}.query", q_in),
        linear(w, f"{p}.key", kv_in),
        linear(w, f"{p}.value", kv_in),
    )
    size = D // heads
    found = []
    for head in range(heads):
        at = slice(head * size, (head + 1) * size)
        scores = q[:, at] @ k[:, at].T / np.sqrt(size)
        if causal:
            scores = np.where(np.tril(np.ones_like(scores)) > 0, scores, -np.inf)
        found.append(softmax(scores) @ v[:, at])
    return linear(w, f"{p}.output", np.concatenate(found, 1))


def test_sasrec() -> None:
    x, made = doubled(inputs()), model("sasrec", layers=2)
    w = weights(made)
    expected = np.zeros((B, 1))
    for row in range(B):
        events, q = events_of(x, row)
        if not len(events):
            continue
        h = events * np.sqrt(D) + w["positions.weight"][: len(events)]
        for layer in range(2):
            p = f"blocks.{layer}"
            query = norm(w, f"{p}.norm_1", h)
            h = query + attend(w, p, query, h, 1, causal=True)
            inner = norm(w, f"{p}.norm_2", h)
            h = inner + linear(w, f"{p}.outer", np.maximum(linear(w, f"{p}.inner", inner), 0))
        expected[row] = norm(w, "norm", h)[-1] @ q
    check("sasrec", expected, made, x)


def test_hstu() -> None:
    """Eq. 1 to 3 of the paper, sequence by sequence, every pair written out."""
    x, made = doubled(inputs()), model("hstu", layers=2, heads=2)
    w, expected = weights(made), np.zeros((B, 1))
    asked = np.array([0, 2_000_000_000] * B)[:B]  # unknown, or later than every event
    x = replace(x, asked_B=torch.from_numpy(asked))

    def plain(v: Any) -> Any:
        return (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-6)

    for row in range(B):
        events, q = events_of(x, row)
        n = len(events)
        if not n:
            continue
        when = x.times[0][row, :n].numpy()  # type: ignore[index]
        asks = np.append(when[1:], max(when[-1], asked[row]))
        h = events * np.sqrt(D) + w["positions.weight"][:n]
        for layer in range(2):
            p = f"layers.{layer}"
            mixed = plain(h) @ w[f"{p}.inner.weight"].T
            u, v, query, key = np.split(mixed * sigmoid(mixed), 4, -1)
            y = np.zeros((n, D))
            for i in range(n):
                for j in range(i + 1):
                    gap = max(1, abs(asks[i] - when[j]))
                    bucket = min(128, int(np.log(gap) / 0.301))
                    bias = w[f"{p}.by_place"][0, L - 1 + j - i] + w[f"{p}.by_time"][0, bucket]
                    for one in (slice(0, D // 2), slice(D // 2, D)):
                        score = query[i, one] @ key[j, one] + bias
                        y[i, one] += score * sigmoid(score) / L * v[j, one]
            h = h + linear(w, f"{p}.outer", plain(y) * u)
        expected[row] = (h[-1] / np.linalg.norm(h[-1])) @ q
    check("hstu", expected, made, x)


def test_onerec() -> None:
    """Encoder, decoder and the probability of a whole id, position by position."""
    x, made = doubled(inputs()), model("onerec", layers=2, decoder_layers=2, heads=2)
    w, expected = weights(made), np.zeros((B, 1))

    def rms(name: str, v: Any) -> Any:
        return v / np.sqrt((v**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}.weight"]

    def heads(name: str, query: Any, others: Any) -> Any:
        q = query @ w[f"{name}.query.weight"].T
        k, v = np.split(others @ w[f"{name}.both.weight"].T, 2, -1)
        parts = []
        for one in (slice(0, D // 2), slice(D // 2, D)):
            parts.append(softmax(q[one] @ k[:, one].T / np.sqrt(D // 2)) @ v[:, one])
        return np.concatenate(parts) @ w[f"{name}.output.weight"].T

    def feed(name: str, v: Any) -> Any:
        gate, up = np.split(v @ w[f"{name}.inner.weight"].T, 2, -1)
        return (gate * sigmoid(gate) * up) @ w[f"{name}.outer.weight"].T + w[f"{name}.outer.bias"]

    for row in range(B):
        events, _ = events_of(x, row)
        n = len(events)
        codes, wanted = x.codes[0][0][row].numpy(), x.codes[0][1][row].numpy()
        h = np.zeros((n, D))
        for at in range(n):
            h[at] = events[at] + w["ago.weight"][n - 1 - at]
            for level in range(K):
                if codes[at, level] >= 0:
                    h[at] += w[f"codes.{level}.weight"][codes[at, level]]
        for layer in range(2):
            p = f"encoder.{layer}"
            inner = rms(f"{p}.norm_1", h)
            h = h + np.stack([heads(f"{p}.attend", one, inner) for one in inner]) if n else h
            h = h + feed(f"{p}.feed", rms(f"{p}.norm_2", h))
        memory = rms("norm", h) if n else np.zeros((1, D))
        h = np.zeros((K, D))
        for level in range(K):
            before = w["start"] if not level else w[f"codes.{level - 1}.weight"][wanted[level - 1]]
            h[level] = before + w["level.weight"][level]
        for layer in range(2):
            p = f"decoder.{layer}"
            inner = rms(f"{p}.norm_1", h)
            h = h + np.stack([heads(f"{p}.own", inner[i], inner[: i + 1]) for i in range(K)])
            inner = rms(f"{p}.norm_2", h)
            h = h + np.stack([heads(f"{p}.cross", one, memory) for one in inner])
            h = h + feed(f"{p}.feed", rms(f"{p}.norm_3", h))
        last = rms("end", h)
        for level in range(K):
            logits = last[level] @ w[f"heads.{level}.weight"].T + w[f"heads.{level}.bias"]
            expected[row] += np.log(softmax(logits))[wanted[level]]
    check("onerec", expected, made, x)


def test_bst() -> None:
    x, made = doubled(inputs()), model("bst", heads=2)
    w = weights(made)

    def leaky(v: Any) -> Any:
        return np.where(v > 0, v, 0.01 * v)

    seen = np.zeros((B, L + 1, D))
    for row in range(B):
        events, q = events_of(x, row)
        count = len(events)
        places = [*range(count, 0, -1), 0]
        h = np.concatenate([events, q[None]]) + w["positions.weight"][places]
        h = norm(w, "blocks.0.norm_1", h + attend(w, "blocks.0", h, h, 2, causal=False))
        inner = leaky(linear(w, "blocks.0.inner", h))
        h = norm(w, "blocks.0.norm_2", h + linear(w, "blocks.0.outer", inner))
        seen[row, :count], seen[row, L] = h[:-1], h[-1]
    both = np.concatenate([flat_of(x), seen.reshape(B, -1)], 1)
    check("bst", run_mlp(w, "deep", both, leaky), made, x)


def test_every_model_has_a_test_and_a_paper() -> None:
    tested = {name.removeprefix("test_").split("_with")[0] for name in globals()}
    for name in recommendation.names():
        assert name in tested
        assert recommendation.find(name).PAPER


@pytest.mark.parametrize("name", recommendation.names())
def test_padding_changes_nothing(name: str) -> None:
    """What stands behind the last event is never read."""
    x = doubled(inputs())
    events, mask, target = x.events[0]
    made = model(name)
    junk = torch.where(mask[..., None], events, torch.full_like(events, 7.0))
    times = (torch.where(mask, x.times[0], 5),)
    codes = ((x.codes[0][0].masked_fill(~mask[..., None], 3), x.codes[0][1]),)
    again = RowInputs(x.fields_BFD, x.numbers_BG, x.linear_B, ((junk, mask, target),), times, codes)
    assert torch.allclose(made(x), made(again), rtol=1e-12, atol=1e-12)


def test_a_model_of_sequences_needs_one() -> None:
    with pytest.raises(JoyError, match="'din' needs a feature of type sequence"):
        recommendation.find("din").MODEL(InputShape(F, G, D), [4], [4], 0.0)


def test_unknown_models_and_settings_name_the_nearest() -> None:
    with pytest.raises(JoyError, match="Did you mean 'deepfm'"):
        recommendation.sizes_of({"model_type": "depfm"})
    with pytest.raises(JoyError, match="Did you mean 'hidden'"):
        recommendation.sizes_of({"model_type": "din", "hiden": [3]})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": [0]}, "'hidden' is 0; it is a whole number from 1"),
        ({"hidden": ["a"]}, "'hidden' is 'a'"),
        ({"dropout": 1.0}, "a share from 0, below 1"),
        ({"dropout": float("nan")}, "a share from 0, below 1"),
        ({"attention": True}, "'attention' is True"),
        ({"attention": 64}, "'attention' is 64; it is a list"),
        ({"hidden": [64.0]}, "'hidden' is 64.0; it is a whole number from 1"),
        ({"hidden": [float("nan")]}, "'hidden' is nan"),
        ({"hidden": [float("inf")]}, "'hidden' is inf"),
    ],
)
def test_a_size_that_makes_no_model_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(JoyError) as caught:
        recommendation.sizes_of({"model_type": "din", **settings})
    assert message in str(caught.value)
