"""Captures of all kinds, one after the other: prints what each gave, by name."""

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch_npu  # noqa: F401


def captured(body: Callable[[], Any]) -> tuple[Any, Any]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        made = body()
    return graph, made


def x() -> torch.Tensor:
    return torch.arange(6.0).npu()


def replay() -> Any:
    given, pinned = x(), torch.ones(6).pin_memory()
    graph, made = captured(lambda: (given * 2)[:3].half() + pinned.npu(non_blocking=True)[:3])
    before = made.isnan().all().item()
    found = []
    for value in (1.0, 4.0):
        given.fill_(value)
        graph.replay()
        found.append(made.tolist())
    return [before, *found]


def in_place() -> Any:
    given = x()
    graph, _ = captured(lambda: given.add_(1))
    after = given.tolist()
    graph.replay()
    graph.replay()
    return [after, given.tolist()]


def joined_stream() -> Any:
    given, side = x(), torch.npu.Stream()

    def body() -> torch.Tensor:
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            made = given * 3
        torch.npu.current_stream().wait_stream(side)
        return made

    graph, made = captured(body)
    graph.replay()
    return made.tolist()


def training_step() -> Any:
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(6, 6).npu(), torch.nn.Linear(6, 6)
    theirs.load_state_dict({name: value.cpu() for name, value in ours.state_dict().items()})
    static = torch.zeros(4, 6).npu()

    def step(model: torch.nn.Module, data: torch.Tensor, rate: Any) -> torch.Tensor:
        loss = model(data).square().mean()
        loss.backward()
        rate.step()
        return loss

    of_ours = torch.optim.SGD(ours.parameters(), lr=0.1)
    of_theirs = torch.optim.SGD(theirs.parameters(), lr=0.1)
    graph, loss = captured(lambda: step(ours, static, of_ours))
    apart = []
    for _ in range(3):
        data = torch.randn(4, 6)
        static.copy_(data)
        of_theirs.zero_grad()
        wanted = step(theirs, data, of_theirs)
        graph.replay()
        apart.append(abs(float(loss) - float(wanted)))
    return max(apart)


def unjoined_stream() -> Any:
    given, side = x(), torch.npu.Stream()

    def body() -> None:
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            given * 3

    captured(body)


def replay_inside() -> None:
    given = x()
    graph, _ = captured(lambda: given * 2)
    captured(graph.replay)


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda given: given.sum().item(),
    "nonzero": torch.nonzero,
    "mask": lambda given: given[given > 2],
    "branch": lambda given: bool(given.sum() > 1),
    "cpu": lambda given: (given + 1).cpu(),
    "pageable": lambda given: torch.ones(3).npu() + given[:3],
    "synchronise": lambda given: torch.npu.synchronize(),
    "print": lambda given: str(given),
}


def outcome(body: Callable[[], Any]) -> Any:
    try:
        return body()
    except RuntimeError as error:
        return re.findall(r"\((1070\d\d)\)", str(error))[-1:] or str(error)


name = sys.argv[1]
if name == "replayed":
    bodies: dict[str, Any] = {f.__name__: f for f in (replay, in_place, joined_stream)}
    bodies["training_step"] = training_step
else:
    one = x()
    bodies = {k: lambda f=f: captured(lambda: f(one)) for k, f in REFUSED.items()}
    bodies |= {"unjoined_stream": unjoined_stream, "replay_inside": replay_inside}
print(json.dumps({key: outcome(body) for key, body in bodies.items()}))
