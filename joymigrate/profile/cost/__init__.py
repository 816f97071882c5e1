"""What one recorded step costs at least on a chip: counted work against documented peaks."""

from joymigrate.profile.cost.bound import Cost, Scaling, bound_step
from joymigrate.profile.cost.launched import Launched, read_launched
from joymigrate.profile.cost.peaks import Peaks, peaks_of
from joymigrate.profile.cost.work import Work, work_of

__all__ = [
    "Cost",
    "Launched",
    "Peaks",
    "Scaling",
    "Work",
    "bound_step",
    "peaks_of",
    "read_launched",
    "work_of",
]
