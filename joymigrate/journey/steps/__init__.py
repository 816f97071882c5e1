"""One file per step: what it runs, and what it reads from the results."""

from joymigrate.journey.steps import (
    advice,
    baseline,
    coverage,
    rehearse,
    rewrite,
    scan,
    serve,
    train,
    verify,
)

__all__ = [
    "advice",
    "baseline",
    "coverage",
    "rehearse",
    "rewrite",
    "scan",
    "serve",
    "train",
    "verify",
]
