"""How many processors this process may use: its affinity, and the quota of its control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def available() -> int:
    """The processors that this process may keep busy, at least one.

    The smaller of two: the processors that the scheduler may put it on, and the time that its
    control groups grant it (`docker run --cpus 2`, `resources.limits.cpu` of a pod), rounded up.
    """
    quota = quota_of_groups()
    return max(1, in_affinity() if quota is None else min(in_affinity(), math.ceil(quota)))


def in_affinity() -> int:
    """The processors of the affinity mask; all of the machine where there is no such mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota_of_groups(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """The processors' worth of time that this process is granted; None without a limit.

    A limit of any group above counts too: the kernel stops a process when one of them is used up.
    Source of both formats: the kernel's admin-guide, cgroup-v2.rst (`cpu.max`: quota and period in
    microseconds) and cgroup-v1 (`cpu.cfs_quota_us`, -1 without a limit).
    """
    limits = [limit for group in groups(cgroups, membership) for limit in limit_of(group)]
    return min(limits, default=None)


def groups(cgroups: Path, membership: Path) -> Iterator[Path]:
    """The folders of the groups of this process and of all groups above them, both versions."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        top = cgroups if number == "0" else cgroups / "cpu"
        # In a container that shares the machine's names, the group is mounted at the top.
        yield top
        folder = top / path.lstrip("/")
        while folder != top:
            yield folder
            folder = folder.parent


def limit_of(group: Path) -> Iterator[float]:
    """The limit of one group in processors; nothing where it has none, or none that can be read."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        if quota != "max" and int(quota) > 0 and int(period) > 0:
            yield int(quota) / int(period)
    except (OSError, ValueError):
        return
