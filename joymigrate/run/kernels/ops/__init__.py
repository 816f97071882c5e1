"""One file per operator: formula, reference, implementations, tolerance, cases."""
