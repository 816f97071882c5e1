"""Models of `joymigrate train` against DeepCTR-Torch with the same weights: how logits differ.

    python benchmarks/recommendation_peer.py --peer /folder/with/deepctr_torch

The folder is put in front of the path: DeepCTR-Torch may stand in a folder of its own
(`pip install --no-deps --target FOLDER deepctr-torch scikit-learn joblib threadpoolctl cloudpickle
narwhals`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor, nn

from joymigrate.run.train import recommendation
from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs

ROWS, FIELDS, NUMBERS, DIM, EVENTS, HIDDEN = 64, 4, 3, 8, 6, (16, 8)
SHAPE = InputShape(FIELDS, NUMBERS, DIM)


def copy(ours: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    """One linear layer; without a bias it is zero."""
    with torch.no_grad():
        ours.weight.copy_(weight)
        if ours.bias is not None:
            ours.bias.copy_(torch.zeros_like(ours.bias) if bias is None else bias)


def copy_mlp(ours: nn.Sequential, theirs: Any, last: Any = None) -> None:
    """Layers in order; `last` is the layer behind them."""
    linears = [layer for layer in ours if isinstance(layer, nn.Linear)]
    wanted = [*theirs.linears, *([last] if last is not None else [])]
    for one, other in zip(linears, wanted, strict=True):
        copy(one, other.weight, other.bias)


class Peer:
    """What their models are made of and fed with."""

    def __init__(self) -> None:
        from deepctr_torch import inputs

        torch.manual_seed(0)
        self.sparse = [inputs.SparseFeat(f"f{n}", 20, DIM) for n in range(FIELDS)]
        self.dense = [inputs.DenseFeat(f"n{n}", 1) for n in range(NUMBERS)]
        self.columns = [*self.sparse, *self.dense]
        ids = torch.randint(0, 20, (ROWS, FIELDS)).float()
        self.x = torch.cat((ids, torch.randn(ROWS, NUMBERS)), 1)
        self.usual = {"init_std": 0.3, "device": "cpu", "dnn_hidden_units": HIDDEN}

    def logits(self, model: Any) -> Tensor:
        """What stands before the sigmoid."""
        model.eval()
        with torch.no_grad():
            return torch.logit(model(self.x).double())

    def inputs(self, model: Any, *, linear: bool) -> RowInputs:
        """Their rows, as our models take them."""
        rows, numbers = model.input_from_feature_columns(
            self.x, model.dnn_feature_columns, model.embedding_dict
        )
        first = None
        if linear:  # their linear part with its numbers, which ours keeps as a layer
            with torch.no_grad():
                every = model.linear_model(self.x)[:, 0]
                first = every - (torch.cat(numbers, 1) @ model.linear_model.weight)[:, 0]
        return RowInputs(torch.cat(rows, 1).detach(), torch.cat(numbers, 1), first)


def wide_deep(peer: Peer) -> tuple[Tensor, Tensor]:
    from deepctr_torch.models import WDL

    theirs = WDL(peer.columns, peer.columns, **peer.usual)
    ours = recommendation.find("wide_deep").MODEL(SHAPE, hidden=[*HIDDEN], dropout=0.0)
    copy(ours.wide, theirs.linear_model.weight.T, None)
    copy_mlp(ours.deep, theirs.dnn, theirs.dnn_linear)
    return ours(peer.inputs(theirs, linear=True)), peer.logits(theirs)


def deepfm(peer: Peer) -> tuple[Tensor, Tensor]:
    from deepctr_torch.models import DeepFM

    theirs = DeepFM(peer.columns, peer.columns, **peer.usual)
    ours = recommendation.find("deepfm").MODEL(SHAPE, hidden=[*HIDDEN], dropout=0.0)
    copy(ours.first, theirs.linear_model.weight.T, None)
    copy_mlp(ours.deep, theirs.dnn, theirs.dnn_linear)
    return ours(peer.inputs(theirs, linear=True)), peer.logits(theirs)


def without_linear(model: Any) -> None:
    """DCN-v2 has no linear part; DeepCTR adds one."""
    with torch.no_grad():
        for parameter in model.linear_model.parameters():
            parameter.zero_()


def dcn(peer: Peer, rank: int = 0) -> tuple[Tensor, Tensor]:
    from deepctr_torch.models import DCN, DCNMix

    if rank:
        theirs = DCNMix(peer.columns, peer.columns, cross_num=2, low_rank=rank, **peer.usual)
    else:
        matrix = {"cross_parameterization": "matrix"}
        theirs = DCN(peer.columns, peer.columns, cross_num=2, **matrix, **peer.usual)
    without_linear(theirs)
    sizes = {"hidden": [*HIDDEN], "dropout": 0.0, "crosses": 2, "rank": rank, "experts": 4}
    ours = recommendation.find("dcn").MODEL(SHAPE, **sizes, structure="parallel")
    net = theirs.crossnet
    with torch.no_grad():
        for at, layer in enumerate(ours.crosses):
            if not rank:
                copy(layer.linear, net.kernels[at], net.bias[at][:, 0].normal_())
                continue
            layer.down.copy_(net.V_list[at])
            layer.middle.copy_(net.C_list[at].transpose(1, 2))
            layer.up.copy_(net.U_list[at].transpose(1, 2))
            layer.bias.copy_(net.bias[at][:, 0].normal_())
            layer.gate.weight.copy_(torch.cat([gate.weight for gate in net.gating]))
    copy_mlp(ours.deep, theirs.dnn)
    copy(ours.output, theirs.dnn_linear.weight, None)
    return ours(peer.inputs(theirs, linear=False)), peer.logits(theirs)


def mmoe(peer: Peer) -> tuple[Tensor, Tensor]:
    from deepctr_torch.models.multitask.mmoe import MMOE

    sizes = {"expert_dnn_hidden_units": (16,), "gate_dnn_hidden_units": ()}
    theirs = MMOE(
        peer.columns, num_experts=3, **sizes, tower_dnn_hidden_units=(8,), init_std=0.3,
        task_types=("binary", "binary"), task_names=("a", "b"), device="cpu",
    )  # fmt: skip
    shape = InputShape(FIELDS, NUMBERS, DIM, targets=2)
    ours = recommendation.find("mmoe").MODEL(shape, experts=3, expert=[16], tower=[8], dropout=0.0)
    for one, other in zip(ours.experts, theirs.expert_dnn, strict=True):
        copy_mlp(one, other)
    for one, other in zip(ours.gates, theirs.gate_dnn_final_layer, strict=True):
        copy(one, other.weight, None)
    towers = zip(ours.towers, theirs.tower_dnn, theirs.tower_dnn_final_layer, strict=True)
    for one, other, last in towers:
        copy_mlp(one, other, SimpleNamespace(weight=last.weight, bias=None))
    return ours(peer.inputs(theirs, linear=False)), peer.logits(theirs)


def ple(peer: Peer) -> tuple[Tensor, Tensor]:
    from deepctr_torch.models.multitask.ple import PLE

    sizes = {"expert_dnn_hidden_units": (16,), "gate_dnn_hidden_units": ()}
    theirs = PLE(
        peer.columns, shared_expert_num=2, specific_expert_num=2, num_levels=2, **sizes,
        tower_dnn_hidden_units=(8,), init_std=0.3, task_types=("binary", "binary"),
        task_names=("a", "b"), device="cpu",
    )  # fmt: skip
    shape = InputShape(FIELDS, NUMBERS, DIM, targets=2)
    sizes = {"levels": 2, "own": 2, "shared": 2, "expert": [16], "tower": [8], "dropout": 0.0}
    ours = recommendation.find("ple").MODEL(shape, **sizes)
    for at, level in enumerate(ours.levels):
        for task in range(2):
            for number in range(2):
                copy_mlp(level.own[task][number], theirs.specific_experts[at][task][number])
            copy(level.gates[task], theirs.specific_gate_dnn_final_layer[at][task].weight, None)
        for number in range(2):
            copy_mlp(level.shared[number], theirs.shared_experts[at][0][number])
        if level.shared_gate is not None:
            copy(level.shared_gate, theirs.shared_gate_dnn_final_layer[at].weight, None)
    towers = zip(ours.towers, theirs.tower_dnn, theirs.tower_dnn_final_layer, strict=True)
    for one, other, last in towers:
        copy_mlp(one, other, SimpleNamespace(weight=last.weight, bias=None))
    return ours(peer.inputs(theirs, linear=False)), peer.logits(theirs)


def din(peer: Peer) -> tuple[Tensor, Tensor]:
    from deepctr_torch import inputs
    from deepctr_torch.models import DIN

    torch.manual_seed(1)
    item = inputs.SparseFeat("item", 20, DIM)
    history = inputs.VarLenSparseFeat(
        inputs.SparseFeat("hist_item", 20, DIM, embedding_name="item"), EVENTS, length_name="length"
    )
    user = inputs.SparseFeat("user", 20, DIM)
    theirs = DIN(
        [user, item, history], ["item"], dnn_hidden_units=HIDDEN, att_hidden_size=(16, 8),
        att_activation="sigmoid", init_std=0.3, device="cpu",
    )  # fmt: skip
    lengths = torch.randint(1, EVENTS + 1, (ROWS,))
    mask = torch.arange(EVENTS) < lengths[:, None]
    ids = torch.randint(1, 20, (ROWS, 2))
    events = torch.randint(1, 20, (ROWS, EVENTS)) * mask
    wanted = {"user": ids[:, :1], "item": ids[:, 1:], "hist_item": events,
              "length": lengths[:, None]}  # fmt: skip
    peer.x = torch.cat([wanted[name].float() for name in theirs.feature_index], 1)
    ours = recommendation.find("din").MODEL(
        InputShape(2, 0, DIM, (EVENTS,)), hidden=[*HIDDEN], attention=[16, 8], dropout=0.0
    )
    unit = theirs.attention.local_att
    linears = [layer for layer in ours.units[0].layers if isinstance(layer, nn.Linear)]
    for one, other in zip(linears, [*unit.dnn.linears, unit.dense], strict=True):
        copy(one, other.weight, other.bias)
    copy_mlp(ours.deep, theirs.dnn, theirs.dnn_linear)
    rows = {name: table.weight.detach() for name, table in theirs.embedding_dict.items()}
    fields = torch.stack([rows["user"][ids[:, 0]], rows["item"][ids[:, 1]]], 1)
    behaviour = rows["item"][events] * mask[..., None]
    # Theirs puts the pooled history between or behind the fields; ours behind them.
    found = RowInputs(fields, torch.zeros(ROWS, 0), None, ((behaviour, mask, fields[:, 1]),))
    return ours(found), peer.logits(theirs)


MODELS: dict[str, Callable[[Peer], tuple[Tensor, Tensor]]] = {
    "wide_deep": wide_deep,
    "deepfm": deepfm,
    "dcn": dcn,
    "dcn, low rank": lambda peer: dcn(peer, rank=4),
    "mmoe": mmoe,
    "ple": ple,
    "din": din,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True, help="the folder that deepctr_torch lies in")
    sys.path.insert(0, parser.parse_args().peer)
    worst = 0.0
    for name, compare in MODELS.items():
        ours, theirs = compare(Peer())
        difference = float((ours.detach().double() - theirs).abs().max())
        worst = max(worst, difference)
        print(f"{name}: logits of {float(theirs.abs().max()):.2f} differ by {difference:.1e}")
    print(f"largest difference {worst:.1e} (<= 1e-5, float32 through a sigmoid and back)")
    sys.exit(worst > 1e-5)


if __name__ == "__main__":
    main()
