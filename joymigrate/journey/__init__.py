"""The whole journey of one project: scan, rewrite, rehearse, measure, verify, train, serve.

The one package beside the command line that composes the others. It drives them as a user would,
by command, so that every step of a journey can be repeated by hand; what each step left behind
lies in one folder, with its hash in the ledger.
"""

from joymigrate.journey.devices import devices_of
from joymigrate.journey.entry import read_entry
from joymigrate.journey.gates import Gates, read_gates
from joymigrate.journey.model import Journey, JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.plan import NAMES, PlannedStep, commands, plan
from joymigrate.journey.runner import run_journey

__all__ = [
    "NAMES",
    "Gates",
    "Journey",
    "JourneyRequest",
    "PlannedStep",
    "StepOutcome",
    "StepStatus",
    "commands",
    "devices_of",
    "plan",
    "read_entry",
    "read_gates",
    "run_journey",
]
