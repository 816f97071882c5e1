"""Installs joymigrate where nothing is, with each extra alone, and uses it there."""
