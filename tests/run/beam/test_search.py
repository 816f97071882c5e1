"""Beam search against brute force, plain attention and transformers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402

from joymigrate.errors import JoyError  # noqa: E402
from joymigrate.run.beam import (  # noqa: E402
    AnyToken,
    BeamRequest,
    BeamSearch,
    Trie,
    attend,
    choose,
)


class TableWriter:
    """Logits are a function of the prompt and of what a beam wrote: a table made as asked."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary, self.widest = vocabulary, 0

    def logits(self, seed: int, written: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, written)) % 2**31)
        return torch.randn(self.vocabulary, generator=generator, dtype=torch.float64) * 2

    def begin(self, prompts: Sequence[int]) -> list[tuple[Any, Tensor]]:
        return [({"seed": p, "beams": [()]}, self.logits(p, ())) for p in prompts]

    def step(
        self, states: Sequence[Any], parents: Sequence[Tensor], tokens: Sequence[Tensor]
    ) -> list[Tensor]:
        found = []
        self.widest = max(self.widest, len(states))
        for state, above, codes in zip(states, parents, tokens, strict=True):
            pairs = zip(above.tolist(), codes.tolist(), strict=True)
            state["beams"] = [(*state["beams"][p], t) for p, t in pairs]
            found.append(torch.stack([self.logits(state["seed"], w) for w in state["beams"]]))
        return found


def log_p(writer: TableWriter, seed: int, row: tuple[int, ...]) -> float:
    total = 0.0
    for place, code in enumerate(row):
        total += float(writer.logits(seed, row[:place]).log_softmax(-1)[code])
    return total


def random_trie(draw: random.Random) -> tuple[list[tuple[int, ...]], int]:
    levels, vocabulary = draw.randint(1, 4), draw.randint(2, 6)
    count = draw.randint(1, min(24, vocabulary**levels))
    rows: set[tuple[int, ...]] = set()
    while len(rows) < count:
        rows.add(tuple(draw.randrange(vocabulary) for _ in range(levels)))
    return draw.sample(sorted(rows), len(rows)), vocabulary


def by_hand(
    writer: TableWriter, seed: int, rows: list[tuple[int, ...]], width: int, top_k: int
) -> list[tuple[int, ...]]:
    """The definition of a narrow beam search, over sets of prefixes."""
    beams: list[tuple[int, ...]] = [()]
    for level in range(len(rows[0])):
        valid = {row[: level + 1] for row in rows}
        grown = []
        for beam in beams:
            mine = [one for one in valid if one[:level] == beam]
            mine.sort(key=lambda one: -log_p(writer, seed, one))
            grown += mine[:top_k]
        beams = sorted(grown, key=lambda one: -log_p(writer, seed, one))[:width]
    return beams


@pytest.mark.parametrize(
    "portion", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 10))]
)
def test_wide_beams_equal_brute_force_and_narrow_ones_their_definition(portion: int) -> None:
    """1,000 random tries in ten portions of a hundred; nothing invalid comes out."""
    draw = random.Random(portion)
    for case in range(100):
        rows, vocabulary = random_trie(draw)
        writer, seed = TableWriter(vocabulary), portion * 100 + case
        trie = Trie.of(torch.tensor(rows), torch.arange(len(rows)) + 1000)
        search = BeamSearch(writer, trie, places=draw.choice([1, 7, 50, 1 << 18]))
        width, top_k = draw.randint(1, 6), draw.randint(1, 6)
        wide, narrow = search.run(
            [BeamRequest(seed, len(rows) + 3), BeamRequest(seed, width, top_k)]
        )
        best = sorted(rows, key=lambda row: -log_p(writer, seed, row))
        assert [tuple(row) for row in wide.tokens.tolist()] == best
        assert [rows[i - 1000] for i in trie.items_of(wide.nodes).tolist()] == best
        exact = [log_p(writer, seed, row) for row in best]
        # Scores begin as float32: three roundings of a number below 40.
        assert torch.allclose(wide.scores, torch.tensor(exact, dtype=torch.float64), atol=1e-5)
        assert torch.allclose(wide.gains.sum(1).double(), wide.scores.double(), atol=1e-4)
        expected = by_hand(writer, seed, rows, width, top_k)
        assert [tuple(row) for row in narrow.tokens.tolist()] == expected


def test_requests_come_between_rounds_and_change_nothing() -> None:
    rows, writer = [(a, b, c) for a in range(4) for b in range(4) for c in range(4)], TableWriter(4)
    trie = Trie.of(torch.tensor(rows))
    alone = {seed: BeamSearch(writer, trie).run([BeamRequest(seed, 5)])[0] for seed in range(6)}
    search = BeamSearch(writer, trie, capacity=12)
    found = {search.admit(BeamRequest(0, 5)): 0}
    answers = search.round()
    for seed in range(1, 6):
        found[search.admit(BeamRequest(seed, 5))] = seed
        answers += search.round()
    while not search.idle:
        answers += search.round()
    assert writer.widest == 2  # twelve beams hold two requests of five
    assert [found[one.number] for one in answers] == list(range(6))
    for one in answers:
        assert torch.equal(one.tokens, alone[found[one.number]].tokens)


def test_memory_does_not_grow_with_beams_times_codes() -> None:
    """What a portion holds is bounded, whatever the beams and codes."""
    from joymigrate.run.beam.choose import portions

    for beams, codes in ((512, 512), (512, 8192), (4096, 512)):
        counts = torch.full((beams,), codes)
        runs = portions(counts, codes, 1 << 18)
        assert sum(run.stop - run.start for run in runs) == beams
        assert max(run.stop - run.start for run in runs) * codes <= 1 << 18


def test_a_broken_row_ends_its_own_request_only() -> None:
    class Broken(TableWriter):
        def logits(self, seed: int, written: tuple[int, ...]) -> Tensor:
            found = super().logits(seed, written)
            return found * float("nan") if seed == 1 and written else found

    trie = Trie.of(torch.tensor([(0, 0), (0, 1), (1, 1)]))
    good, bad = BeamSearch(Broken(2), trie).run([BeamRequest(0, 3), BeamRequest(1, 3)])
    assert good.error is None
    assert len(good.tokens) == 3
    assert isinstance(bad.error, JoyError)


def test_what_the_model_holds_impossible_does_not_come_out() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0]])
    made = choose(torch.zeros(1), logits, torch.zeros(1, dtype=torch.long), AnyToken(3, 1), 3)
    assert made.tokens.tolist() == [2, 0]


def test_two_items_of_one_id_are_refused() -> None:
    with pytest.raises(JoyError, match=r"items 5 and 7 have the same codes \[1, 2\]"):
        Trie.of(torch.tensor([[1, 2], [0, 0], [1, 2]]), torch.tensor([5, 6, 7]))
    with pytest.raises(JoyError, match="width is 1 or more"):
        BeamRequest([1], 0)
    with pytest.raises(JoyError, match="this search holds 4"):
        BeamSearch(TableWriter(2), AnyToken(2, 1), capacity=4).admit(BeamRequest(0, 5))


@pytest.mark.parametrize("own", [0, 1, 3])
def test_a_shared_prefix_is_the_same_as_a_copy_for_each_beam(own: int) -> None:
    torch.manual_seed(0)
    beams, heads, kv, size, prefix = 5, 6, 2, 8, 7
    q = torch.randn(beams, heads, size, dtype=torch.float64)
    keys, values = torch.randn(2, prefix, kv, size, dtype=torch.float64)
    mine = tuple(torch.randn(2, beams, own, kv, size, dtype=torch.float64)) if own else None
    both = []
    for shared, part in zip((keys, values), mine or (None, None), strict=True):
        whole = shared.expand(beams, -1, -1, -1)
        both.append(whole if part is None else torch.cat([whole, part], 1))
    k, v = (t.transpose(1, 2) for t in both)
    wanted = torch.nn.functional.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)
    assert torch.allclose(attend(q, (keys, values), mine), wanted[:, :, 0])


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
def test_a_language_model_writes_what_transformers_writes(kind: str) -> None:
    """The same sequences and scores as generate with beams, free and under a trie."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    transformers = pytest.importorskip("transformers")
    from joymigrate.run.beam.causal import CausalWriter

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        kind, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=19, max_position_embeddings=64,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, initializer_range=0.4,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    prompt, width = [3, 1, 4, 1, 5], 4
    rows = torch.tensor([[a, b, c] for a in (2, 5, 7) for b in (1, 8) for c in (3, 4, 11)])
    trie = Trie.of(rows)
    search = BeamSearch(CausalWriter(model), trie)
    free, ruled = search.run(
        [BeamRequest(prompt, width, rules=AnyToken(19, 3)), BeamRequest(prompt, width)]
    )

    def allowed(_: int, ids: Tensor) -> list[int]:
        written = ids[len(prompt) :].tolist()
        found = [r[len(written)] for r in rows.tolist() if r[: len(written)] == written]
        return sorted(set(found)) if found else [0]

    for ours, rule in ((free, None), (ruled, allowed)):
        made = model.generate(
            torch.tensor([prompt]), num_beams=width, num_return_sequences=width, max_new_tokens=3,
            do_sample=False, length_penalty=0.0, prefix_allowed_tokens_fn=rule,
            output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        assert made.sequences[:, len(prompt) :].tolist() == ours.tokens.tolist()
        # float32 sums in another order, of logarithms below 20.
        assert torch.allclose(made.sequences_scores, ours.scores, atol=1e-4)
