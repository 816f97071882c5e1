"""Whether an experiment on an error could have failed. No torch.

A factor that is fitted to one number always removes its error; so does one of fifty guesses, now
and then. What a try may leave of an error is so little that a random result would leave as little
in one case of a hundred, over all tries.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_LEFT = 0.1  # of the error, however many numbers it has
RISK = 0.01  # of a cause by chance


def independent(error: Any) -> float:
    """How many numbers an error is made of: (Σe²)² / Σe⁴. 1 where one number is wrong, n where n
    are wrong by as much; 0 without an error."""
    squares = np.square(np.asarray(error, float).reshape(-1))
    most = float(squares.max(initial=0.0))
    if not 0 < most < np.inf:
        return 0.0
    shares = squares / most
    return float(shares.sum() ** 2 / np.square(shares).sum())


def most_left(numbers: float, fitted: int, tries: int) -> float:
    """What a cause has to leave less of than this: a share of an error of so many `independent`
    numbers, of which `fitted` were taken from the error itself. 0: nothing can be told."""
    free = numbers - fitted
    if free < 0.5:
        return 0.0
    return float(min(MOST_LEFT, (RISK / max(tries, 1)) ** (1 / free)))
