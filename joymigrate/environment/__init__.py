"""What a machine has for a chip, recorded; what stands in the way, diagnosed from the record."""

from joymigrate.environment.diagnose import Diagnosis, EnvironmentFinding, diagnose
from joymigrate.environment.record import record

__all__ = ["Diagnosis", "EnvironmentFinding", "diagnose", "record"]
