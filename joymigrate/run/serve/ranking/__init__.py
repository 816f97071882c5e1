"""Ranking models: many small requests merged into one, without a compilation in their path."""
