"""`joymigrate serve …` whose model raises an error from its Nth forward pass on.

python serve_failing.py N ERROR MODEL_DIR [OPTION…]
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

from joymigrate.cli._main import run
from joymigrate.run.serve.engine.models.decoder import DecoderModel

first, said = int(sys.argv[1]), sys.argv[2]
passes = itertools.count(1)
hidden = DecoderModel.hidden


def failing(self: Any, batch: Any, cache: Any) -> Any:
    if next(passes) >= first:
        raise RuntimeError(said)
    return hidden(self, batch, cache)


DecoderModel.hidden = failing  # type: ignore[method-assign]
sys.exit(run(["serve", "--no-probe", *sys.argv[3:]]))  # the probe makes passes, too
