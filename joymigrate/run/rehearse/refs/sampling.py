"""Choosing tokens: top-k and top-p filters, and a step of vLLM's bookkeeping."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.randomness import generator_of, next_pair

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None


@reference("npu_top_k_top_p", source=DOCS.format("npu_top_k_top_p"))
def npu_top_k_top_p(logits: Tensor, p: Maybe, k: Maybe) -> Tensor:
    """Logits outside the k best, and outside the smallest set of mass p, become -inf."""
    values, order = logits.sort(dim=-1, stable=True)
    if k is not None:
        least = values.gather(1, (values.shape[1] - k.long()).unsqueeze(1))
        values = values.masked_fill(values < least, -torch.inf)
    if p is not None:
        mass = values.float().softmax(-1).cumsum(-1)
        hide = mass <= (1 - p.float()).unsqueeze(1)
        hide[:, -1] = False  # the best one always stays
        values = values.masked_fill(hide, -torch.inf)
    return torch.empty_like(values).scatter_(-1, order, values)


@reference("npu_sim_exponential_", source=DOCS.format("npu_sim_exponential_"))
def npu_sim_exponential_(x: Tensor, lambd: float, generator: torch.Generator | None) -> Tensor:
    """Exponential numbers, in place."""
    return x.exponential_(lambd, generator=generator or generator_of(*next_pair()))


@reference(
    "npu_advance_step_flashattn",
    source=DOCS.format("npu_advance_step_flashattn"),
    without="spec_token accepted_num",
)
def npu_advance_step_flashattn(given: ReferenceArguments) -> None:
    """One decoding step of every query, in place: token, position, length, slot."""
    given.input_tokens[: given.num_queries] = given.sampled_token_ids.reshape(-1)[
        : given.num_queries
    ].to(given.input_tokens.dtype)
    positions = given.seq_lens[: given.num_queries].clone()
    given.input_positions[: given.num_queries] = positions.to(given.input_positions.dtype)
    given.seq_lens[: given.num_queries] = positions + 1
    row = torch.arange(given.num_queries)
    block = given.block_tables[row, (positions // given.block_size).long()].long()
    given.slot_mapping[: given.num_queries] = (
        block * given.block_size + positions % given.block_size
    ).to(given.slot_mapping.dtype)
