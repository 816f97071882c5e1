"""Tests of `joymigrate.run.cluster`."""
