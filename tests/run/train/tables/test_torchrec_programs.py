"""What programs of TorchRec use beside its tables: models, batches, optimisers, the wire."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pandas")
from torch.distributed.optim import _apply_optimizer_in_backward  # noqa: E402

from joymigrate.errors import JoyError  # noqa: E402
from joymigrate.run.train.tables import (  # noqa: E402
    DLRM,
    CombinedOptimizer,
    CommType,
    DLRMTrain,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedOptimizerWrapper,
    QCommsConfig,
    RandomRecDataset,
    RowWiseAdagrad,
    TablePipeline,
    fused_optimizer,
    get_qcomm_codecs_registry,
    in_backward_optimizer_filter,
)
from joymigrate.run.train.tables.wire import pack_values, unpack_values  # noqa: E402

KEYS = ["a", "b"]


def small(device: str | None = None) -> DLRMTrain:
    torch.manual_seed(0)
    tables = [EmbeddingBagConfig(30, 8, f"t_{key}", feature_names=[key]) for key in KEYS]
    bags = EmbeddingBagCollection(tables, device=device)
    return DLRMTrain(DLRM(bags, 5, [12, 8], [16, 1]))


def batches(count: int) -> RandomRecDataset:
    return RandomRecDataset(KEYS, 16, 30, ids_per_feature=2, num_dense=5, manual_seed=1,
                            num_batches=count)  # fmt: skip


def test_a_program_with_optimisers_in_backward_equals_dense_updates() -> None:
    found = []
    for fused in (False, True):
        model = small()
        rows = list(model.model.sparse_arch.parameters())
        if fused:
            _apply_optimizer_in_backward(RowWiseAdagrad, rows, {"lr": 0.05, "eps": 1e-8})
            named = in_backward_optimizer_filter(model.named_parameters())
            rest = KeyedOptimizerWrapper(dict(named), lambda p: torch.optim.Adagrad(p, lr=0.05))
        else:
            dense = [p for n, p in model.named_parameters() if "embedding_bags" not in n]
            rest = CombinedOptimizer(
                [torch.optim.Adagrad(dense, lr=0.05), RowWiseAdagrad(rows, lr=0.05, eps=1e-8)]
            )
        pipeline = TablePipeline(model, rest, synchronous=not fused)
        source = iter(batches(8))
        found.append(torch.stack([pipeline.progress(source)[0] for _ in range(8)]))
        with pytest.raises(StopIteration):
            pipeline.progress(source)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_a_schedule_changes_the_rate_of_rows() -> None:
    model = small()
    _apply_optimizer_in_backward(torch.optim.SGD, model.model.sparse_arch.parameters(), {"lr": 1.0})
    pipeline = TablePipeline(model, None, synchronous=True)  # fuses what is marked
    rows = fused_optimizer(model)
    assert [group["lr"] for group in rows.param_groups] == [1.0, 1.0]
    schedule = torch.optim.lr_scheduler.LambdaLR(rows, lambda step: float(step == 0))
    bags, source = model.model.sparse_arch.embedding_bag_collection, iter(batches(3))

    def weights():
        every = [bags.table(name).look(np.arange(30)) for name in ("t_a", "t_b")]
        return torch.cat(every).clone()

    first = weights()
    pipeline.progress(source)
    second = weights()
    assert not torch.equal(first, second)
    rows.step()  # nothing is left to do
    schedule.step()
    pipeline.progress(source)
    assert torch.equal(weights(), second)
    rows.load_state_dict({"param_groups": [{"lr": 0.5}, {"lr": 0.5}]})
    pipeline.progress(source)
    assert not torch.equal(weights(), second)


def test_state_of_a_wrapped_optimiser_goes_by_names() -> None:
    model = torch.nn.Linear(3, 1)
    one = KeyedOptimizerWrapper(dict(model.named_parameters()), torch.optim.Adam)
    model(torch.ones(2, 3)).sum().backward()
    one.step()
    kept = one.state_dict()
    assert set(kept["state"]) == {"weight", "bias"}
    other = KeyedOptimizerWrapper(dict(model.named_parameters()), torch.optim.Adam)
    other.load_state_dict(kept)
    assert torch.equal(other.state[model.weight]["exp_avg"], one.state[model.weight]["exp_avg"])
    with pytest.raises(JoyError, match="no 'bias'"):
        other.load_state_dict({"state": {"weight": {}}, "param_groups": []})
    assert KeyedOptimizerWrapper({}, torch.optim.Adam).state_dict()["state"] == {}


def test_what_is_sent_rounds_once_and_narrow_formats_are_refused() -> None:
    wire = get_qcomm_codecs_registry(QCommsConfig(CommType.FP16, CommType.BF16))
    values = torch.randn(50, generator=torch.Generator().manual_seed(0))
    for kind in (wire.rows, wire.gradients):
        assert pack_values(values, kind).dtype is torch.int8
        assert torch.equal(unpack_values(pack_values(values, kind), kind), values.to(kind).float())
    with pytest.raises(JoyError, match="INT8"):
        get_qcomm_codecs_registry(QCommsConfig(CommType.INT8))


def test_sizes_that_do_not_fit_are_named() -> None:
    bags = EmbeddingBagCollection([EmbeddingBagConfig(9, 8, "a"), EmbeddingBagConfig(9, 4, "b")])
    with pytest.raises(JoyError, match=r"\[4, 8\]"):
        DLRM(bags, 5, [8], [8, 1])
    bags = EmbeddingBagCollection([EmbeddingBagConfig(9, 8, "a")])
    with pytest.raises(JoyError, match="dense_arch_layer_sizes"):
        DLRM(bags, 5, [12], [8, 1])


def test_a_parameter_without_a_gradient_has_no_state_and_its_optimiser_loads() -> None:
    def wrapped(names: str) -> tuple[torch.nn.ModuleDict, KeyedOptimizerWrapper]:
        model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 1) for name in names})
        return model, KeyedOptimizerWrapper(dict(model.named_parameters()), torch.optim.Adam)

    model, optimiser = wrapped("ab")
    model["a"](torch.ones(1, 2)).sum().backward()
    optimiser.step()
    saved = optimiser.state_dict()
    again = wrapped("ab")[1]
    again.load_state_dict(saved)
    assert again.state_dict()["state"].keys() == {"a.weight", "a.bias"}
    for names, words in (("a", "has 'b.bias'"), ("abc", "has no 'c.bias'")):
        with pytest.raises(JoyError, match=words):
            wrapped(names)[1].load_state_dict(saved)
