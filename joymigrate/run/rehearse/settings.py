"""How a rehearsal is set up: made by the command, read by every process of the program."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from joymigrate import settings

# Names the folder of the running rehearsal; set in every process that takes part.
ENVIRONMENT = "JOYMIGRATE_REHEARSE"

# What a rehearsal sets for every process: backends are loaded even where the caller switched that
# off, and everything runs at once, as a queue would race with memory that is read in place.
OWN_VARIABLES = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1", "TASK_QUEUE_ENABLE": "0"}

MODES = ("run", "dry", "shadow", "async")
PRECISIONS = ("fp32", "hf32", "bf16", "fp16")
POLICIES = ("count", "error")
# Short names that users write, and what the vendor's package is told.
SOCS = {
    "910A": "Ascend910A",
    "910PROA": "Ascend910ProA",
    "910B1": "Ascend910B1",
    "910B2": "Ascend910B2",
    "910B2C": "Ascend910B2C",
    "910B3": "Ascend910B3",
    "910B4": "Ascend910B4",
    "910_93": "Ascend910_9391",
    "910_9391": "Ascend910_9391",
    "910_9392": "Ascend910_9392",
    "910_9381": "Ascend910_9381",
    "910_9382": "Ascend910_9382",
    "310P1": "Ascend310P1",
    "310P3": "Ascend310P3",
    "310B1": "Ascend310B1",
    "310B2": "Ascend310B2",
    "310B3": "Ascend310B3",
    "310B4": "Ascend310B4",
}
# What people call a whole series, and the model that then stands for it.
SERIES = {"910B": "910B3", "910C": "910_9391", "310P": "310P3", "310B": "310B4"}
# What the tables call the models, by the beginning of the full name.
HOST_MODELS = {
    "Ascend910B": "910B",
    "Ascend910_93": "910_93",
    "Ascend310P": "310P",
    "Ascend310B": "310B",
    "Ascend910": "910",
}
# GiB of memory on one device, from the vendor's product pages; None where models differ.
MEMORY_GIB = {"Ascend910A": 32, "Ascend910B4": 32, "Ascend310P3": 24, "Ascend310P1": 24}
USUAL_MEMORY_GIB = 64


@dataclass(frozen=True, slots=True)
class RehearsalSettings:
    """One rehearsal. `inject` maps an operator's name to a relative error of its result."""

    session: Path  # folder where the processes leave their records
    libraries: Path  # folder with the simulated runtime
    package: str  # version of torch_npu that it was built for
    cann: str = ""  # version of the chip's software that the package is told
    cann_fits: str = ""  # what is known of that pair: see chips/versions.py
    chip: str = "ascend"
    soc: str = "Ascend910B3"
    series: str = ""  # what the user called it, where that is more than a model
    devices: int = 8
    memory_bytes: int = USUAL_MEMORY_GIB << 30
    mode: str = "run"
    precision: str = "fp32"
    policy: str = "count"
    strict: bool = False  # a call that the chip refuses by its documents raises
    watch: bool = True  # the numbers of the program
    inject: dict[str, float] = field(default_factory=dict)

    def save(self) -> None:
        """Write them into the session folder."""
        settings.write(self, self.session / settings.FILE)


def read_settings() -> RehearsalSettings | None:
    """The settings of the rehearsal that this process takes part in; None outside of one."""
    return settings.of_session(RehearsalSettings, ENVIRONMENT, "rehearsal", "rehearse")
