"""Items written for reinforcement learning by a copy of the dense part: here, or in Ray actors.

Who trains looks the rows of the histories up and gives them along, so tables may be of any size and
cut over processes: a writer holds the dense part alone. A row is read by itself, and its draws
depend on the seed and its number in the step: how rows are spread over writers changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.beam import Trie
from joymigrate.run.train import recommendation
from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs
from joymigrate.run.train.reinforcement.rollouts import SampledAnswer
from joymigrate.run.train.samples.generated_ids import best_ids, draw_ids

Prompt = tuple[Tensor, Tensor]  # rows [L, D] and semantic ids [L, K] of a history's events


class ItemWriter:
    """A dense part that writes ids, without tables."""

    def __init__(self, config: Mapping[str, Any], device: Any, trie: Trie) -> None:
        sizes = dict(config["sizes"])
        kind = recommendation.find(sizes.pop("model_type"))
        self.device, self.trie = device, trie
        with torch.random.fork_rng([]):  # its first weights are nobody's draws
            dense = kind.MODEL(InputShape(**config["shape"]), **sizes)
        self.dense = dense.eval().requires_grad_(False).to(device)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The newest weights."""
        self.dense.load_state_dict(tensors)

    def write(
        self,
        prompts: Sequence[Prompt],
        group: int,
        temperature: float | None,
        seed: int,
        first: int,
    ) -> list[list[SampledAnswer]]:
        """`group` items for each history: drawn, or without `temperature` the likeliest ones.

        `first` is the number of the first history among all of the step: seeds go by it.
        """
        found = []
        cards = [] if torch.device(self.device).type == "cpu" else [self.device]
        for number, prompt in enumerate(prompts):
            memory = self.dense.read(self.inputs(*prompt))
            if temperature is None:
                ((codes, _),) = best_ids(self.dense, memory, self.trie, group)
            else:
                with torch.random.fork_rng(cards):  # the training's draws go on as they were
                    torch.manual_seed((seed + 7_919 * (first + number)) % (1 << 31))
                    codes, _ = draw_ids(self.dense, memory.each(group), self.trie, temperature)
            found.append([SampledAnswer(one) for one in codes.tolist()])
        return found

    def inputs(self, rows_LD: Tensor, codes_LK: Tensor) -> RowInputs:
        """One history as the dense part takes it; one without events has a padded place."""
        rows, codes = rows_LD.to(self.device), codes_LK.to(self.device)
        mask = torch.ones(1, max(1, len(rows)), dtype=torch.bool, device=self.device)
        if not len(rows):
            rows, codes = rows.new_zeros(1, rows.shape[1]), codes.new_full((1, codes.shape[1]), -1)
            mask[:] = False
        none = rows.new_zeros(1, 0)
        return RowInputs(
            none[..., None], none, events=((rows[None], mask, rows[:1] * 0),),
            codes=((codes[None], codes[:1]),),
        )  # fmt: skip


def prompts_of(found: RowInputs) -> list[Prompt]:
    """The histories of a batch that was looked up, on the host, without padding."""
    rows_BLD, mask_BL, _ = found.events[0]
    codes_BLK, _ = found.codes_of(0)
    rows_BLD, codes_BLK, mask_BL = (x.detach().cpu() for x in (rows_BLD, codes_BLK, mask_BL))
    return [(rows_BLD[row][seen], codes_BLK[row][seen]) for row, seen in enumerate(mask_BL)]


def config_of(model: Any) -> dict[str, Any]:
    """What an `ItemWriter` is made from."""
    inner = getattr(model, "module", model)
    return {"sizes": dict(inner.sizes), "shape": asdict(inner.shape)}
