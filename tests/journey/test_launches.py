"""Programs that are launched by others, wait for input, or look for a device and end without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journey.test_examples import ORDER, migrated, pytestmark, steps_of, up_to
from tests.journey.test_ways import project

pytestmark = [*pytestmark, pytest.mark.slow]

# The order of a set of strings is another one in every process.
WORDS = """
import torch
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
text = "one two three four five six seven eight nine ten".split()
vocabulary = {word: number for number, word in enumerate(set(text))}
net = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 10)).to(device)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
tokens = torch.tensor([vocabulary[word] for word in text]).to(device)
for step in range(3):
    loss = torch.nn.functional.cross_entropy(net(tokens[:-1]), tokens[1:])
    optimiser.zero_grad(); loss.backward(); optimiser.step()
    print(f"step {step} loss {loss.item():.5f}")
"""
LOOKS = """
import sys
import torch
if not torch.cuda.is_available():
    print("Unable to find a device. Exiting.")
    sys.exit()
net = torch.nn.Linear(4, 4).cuda()
print("loss", net(torch.ones(2, 4).cuda()).square().mean().item())
"""


def test_a_vocabulary_that_is_made_of_a_set_is_the_same_on_both_sides(tmp_path: Path) -> None:
    steps = steps_of(migrated(project(tmp_path, WORDS), "python train.py"))
    assert all(steps[name]["status"] == "done" for name in ORDER), steps
    assert steps["verify"]["verdict"] == "pass", steps["verify"]
    assert steps["train"]["verdict"] == "pass", steps["train"]
    assert "PYTHONHASHSEED=0" in steps["baseline"]["commands"][0]
    held = steps["rehearse"]["evidence"]
    assert "rehearse/memory.json" in held


def test_a_program_that_ends_without_a_device_is_not_called_one_without_torch(
    tmp_path: Path,
) -> None:
    steps = steps_of(migrated(project(tmp_path, LOOKS), "python train.py"))
    assert (
        "it calls no torch module here, and ends with: Unable to find a device. Exiting."
        in (steps["baseline"]["found"])
    )
    assert steps["verify"]["verdict"] == "inconclusive"
    assert "without a device the program ends before it calls" in steps["verify"]["found"]
    assert "--baseline baseline.jmb" in steps["verify"]["help"]


@pytest.mark.parametrize(
    ("source", "entry", "said", "help_"),
    [
        ("import nothing_of_the_kind", "accelerate launch train.py", "No module named", ""),
        ("print(input('which? '))", "python train.py", "EOFError", "reads its standard input"),
    ],
)
def test_a_fault_of_the_programs_own_stops_before_anything_is_changed(
    source: str, entry: str, said: str, help_: str, tmp_path: Path
) -> None:
    steps = steps_of(migrated(project(tmp_path, source), entry))
    assert {name: steps[name]["status"] for name in ORDER} == up_to("baseline")
    assert said in steps["baseline"]["summary"]
    assert help_ in steps["baseline"]["help"]
    assert "CalledProcessError" not in steps["baseline"]["help"]
