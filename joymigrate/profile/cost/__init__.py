"""What one recorded step costs at least on a chip: counted work against documented peaks."""

from joymigrate.profile.cost.bound import Cost, Scaling, bound_step
from joymigrate.profile.cost.peaks import Peaks, peaks_of
from joymigrate.profile.cost.work import Work, work_of

__all__ = [
    "Cost",
    "Peaks",
    "Scaling",
    "Work",
    "bound_step",
    "peaks_of",
    "work_of",
]
