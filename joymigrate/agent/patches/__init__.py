"""Patches from outside: a task for a program that is not ours, judges, rounds in the ledger."""
