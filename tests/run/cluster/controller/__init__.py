"""Tests of `joymigrate.run.cluster.controller`."""
