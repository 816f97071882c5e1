"""DeepSpeed asks for the folder of the chip's software, and a simulated machine has none.

Its builder of operators takes a variable of the environment for given, which the vendor's
`set_env.sh` sets on a machine with the chip. torch_npu refuses a folder that is not there, so that
the variable can't be set here: the builder hears that there is no such folder. It then compiles
nothing, and says so.
"""

from __future__ import annotations

import sys
from typing import Any

from joymigrate import attach

BUILDER = "deepspeed.ops.op_builder.npu.builder"


def start() -> None:
    """Wait for DeepSpeed's builder in this process."""
    attach.after_import(BUILDER, name_no_home, who="rehearse and DeepSpeed")


def name_no_home() -> None:
    """Answer the builder's question."""
    builder: Any = sys.modules[BUILDER]
    builder.NPUOpBuilder.installed_cann_path = lambda self: None
