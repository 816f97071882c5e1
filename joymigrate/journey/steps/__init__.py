"""One file per step: what it runs, what it reads from the results, and which gates hold it."""

from joymigrate.journey.steps import advice, coverage, rehearse, rewrite, scan, serve, train, verify

__all__ = ["advice", "coverage", "rehearse", "rewrite", "scan", "serve", "train", "verify"]
