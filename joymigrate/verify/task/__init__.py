"""Two files of predictions → is the target as good as the baseline, by how much, and how sure.

`compare(baseline, target, question)` reads both once, in any order, and returns a `TaskComparison`.
"""

from __future__ import annotations

from joymigrate.verify.task.compare import TaskComparison, TaskQuestion, compare
from joymigrate.verify.task.judge import Judgement
from joymigrate.verify.task.normalise import NORMALISERS
from joymigrate.verify.task.score import METRICS

__all__ = ["METRICS", "NORMALISERS", "Judgement", "TaskComparison", "TaskQuestion", "compare"]
