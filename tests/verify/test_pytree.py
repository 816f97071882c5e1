"""How tensors are found inside arguments and results, and put back."""

from __future__ import annotations

import torch

from joymigrate.verify import pytree


def test_a_jagged_tensor_is_looked_at_by_its_values_and_put_back_with_its_parts() -> None:
    values = torch.arange(12.0).reshape(6, 2).requires_grad_(True)
    offsets = torch.tensor([0, 1, 4, 6])
    given = {"x": torch.nested.nested_tensor_from_jagged(values, offsets)}
    (path, seen), *more = pytree.tensors(given)
    assert (path, more) == ("x", [])
    assert torch.equal(seen, values)
    put = pytree.replace_tensors(given, lambda _, tensor: 2 * tensor)["x"]
    assert [len(part) for part in put.unbind()] == [1, 3, 2]
    torch.stack([part.sum() for part in put.unbind()]).sum().backward()
    assert torch.equal(values.grad, torch.full((6, 2), 2.0))  # it reaches what it was made of
