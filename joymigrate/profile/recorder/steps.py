"""Where one step of a program ends and the next begins: a state machine over what it calls.

Training: a step ends with `Optimizer.step` of the optimiser that stepped first, so a program with
two of them (a GAN) has one step per round, and gradient accumulation stays inside one.
Training without a torch optimiser: a new step begins with the first forward after a backward;
without modules either, a step ends with each backward.
Inference: each top-level module call begins a step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Steps:
    """Counts finished steps. `explicit`: only `end` counts (a step function that we call)."""

    explicit: bool = False
    done: int = 0
    leader: int | None = None  # identity of the optimiser that stepped first
    optimisers: int = 0  # how many were made
    forwards: int = 0  # top-level calls in this step
    backwards: int = 0
    trains: bool = False  # a backward pass was seen in any step
    modules: bool = False  # a module was called in any step

    def on_optimiser_made(self) -> None:
        """An optimiser was made: forwards alone no longer end steps."""
        self.optimisers += 1

    def on_forward(self) -> bool:
        """A top-level module call begins. True when a step ended before it."""
        ended = self.forwards > 0 and not self.explicit and self.optimisers == 0
        ended = ended and (self.backwards > 0 or not self.trains)
        if ended:
            self.end()
        self.modules = True
        self.forwards += 1
        return ended

    def on_backward(self) -> None:
        """A backward pass began."""
        self.backwards += 1
        self.trains = True

    def on_backward_done(self) -> bool:
        """A backward pass is over. True when that ended the program's step."""
        if self.explicit or self.optimisers or self.modules:
            return False
        self.end()
        return True

    def on_optimiser_step(self, identity: int) -> bool:
        """An optimiser made a step. True when that ended the program's step."""
        if self.explicit:
            return False
        if self.leader is None:
            self.leader = identity
        if identity != self.leader:
            return False
        self.end()
        return True

    def end(self) -> None:
        """One step is over."""
        self.done += 1
        self.forwards = self.backwards = 0
