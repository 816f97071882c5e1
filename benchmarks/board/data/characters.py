"""nanoGPT's train.bin, val.bin and meta.pkl, as the case studies make them."""

from pathlib import Path

from benchmarks.case_studies import characters

characters(Path.cwd())
