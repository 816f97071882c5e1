"""Facts of a whole rehearsal: cards, groups, ports, and what is reported of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joymigrate.run.rehearse.job_facts import collect_facts, job_traps
from joymigrate.run.rehearse.settings import RehearsalSettings

SETTINGS = RehearsalSettings(Path(), Path(), "2.13.0", soc="Ascend910B3", memory_bytes=64 << 30)


def process(pid: int, *groups: str, held: int = 0, **variables: str) -> dict[str, Any]:
    """What a process left; a group is `name ranks device made gone` and perhaps crossed sends."""
    lines = []
    for one in groups:
        name, ranks, device, made, gone, *crossed = one.split()
        lines.append(f"{name} {ranks} 0 {device} 0 {made} {gone} {crossed[0] if crossed else 0}")
    return {
        "emptied": 0,
        "pid": pid, "groups": lines, "variables": variables, "jit_compile": "", "signatures": [],
        "saved": 9.0, "reserved_bytes": {"npu:0": held} if held else {},
    }  # fmt: skip


def names(*records: dict[str, Any], settings: RehearsalSettings = SETTINGS) -> list[str]:
    """The rows that hold of a program."""
    return [row["trap"] for row in job_traps(settings, records)]


def test_two_ranks_of_a_group_on_one_card_are_told() -> None:
    assert names(process(1, "g 2 0 1 0"), process(2, "g 2 0 1 0")) == ["ranks-of-one-card"]
    assert names(process(1, "g 2 0 1 0"), process(2, "g 2 1 1 0")) == []
    seen = {"ASCEND_RT_VISIBLE_DEVICES": "1"}  # each process counts what it sees from 0
    assert names(process(1, "g 2 0 1 0"), process(2, "g 2 0 1 0", **seen)) == []


def test_sends_that_cross_and_a_cache_that_is_emptied_in_a_pool_are_told() -> None:
    assert names(process(1, "g 2 0 1 0 0"), process(2, "g 2 1 1 0 3")) == ["sends-that-cross"]
    assert names({**process(1), "emptied": 4}) == ["cache-emptied-in-a-pool"]


def test_two_programs_share_the_ports_of_a_card_while_both_are_there() -> None:
    first = [process(1, "g 2 0 1 4"), process(2, "g 2 1 1 4", "sub 2 1 2 4")]
    beside = [process(3, "h 2 0 3 0"), process(4, "h 2 1 3 0")]
    later = [process(3, "h 2 0 5 0"), process(4, "h 2 1 5 0")]
    assert names(*first, *beside) == ["jobs-of-one-card"]
    assert names(*first, *later) == []
    ports = {"HCCL_HOST_SOCKET_PORT_RANGE": "auto"}
    assert names(*first, process(3, "h 2 0 3 0", **ports)) == []
    assert names(process(1, "g 1 0 1 0"), process(2, "h 1 0 1 0")) == []  # nobody to talk to


def test_processes_that_share_a_group_by_way_of_others_are_one_job() -> None:
    chain = [process(1, "a 2 0 1 0"), process(2, "a 2 1 1 0", "b 2 1 1 0"), process(3, "b 2 0 1 0")]
    assert collect_facts(SETTINGS, chain)["jobs_on_card"] == 1


@pytest.mark.parametrize(("size", "held", "found"), [
    ("", 0, False), ("16384", 0, False), ("16384", 40 << 30, True), ("40000", 0, True),
])  # fmt: skip
def test_buffers_of_groups_count_beside_what_the_program_holds(
    size: str, held: int, found: bool
) -> None:
    """Two buffers each; of groups that follow one another the larger counts."""
    named = {"HCCL_BUFFSIZE": size} if size else {}
    record = process(1, "g 2 0 1 2", "h 2 0 3 0", held=held, **named)
    assert names(record) == (["buffers-of-groups"] if found else [])


def test_programs_that_follow_one_another_do_not_hold_a_card_together() -> None:
    first, then = "g 2 0 1 2", "h 2 0 3 0"
    assert names(process(1, first, held=40 << 30), process(2, then, held=40 << 30)) == []


def test_an_inference_card_compiles_by_shape_unless_told_not_to() -> None:
    card = replace(SETTINGS, soc="Ascend310P3")
    form = {"op": "aten::convolution", "args": [{"tensor": {"shape": [1]}}]}
    record = {**process(1), "signatures": [form] * 5}
    assert names(record, settings=card) == ["compiled-by-shape"]
    assert names({**record, "jit_compile": "disable"}, settings=card) == []
    assert names(record) == []


def test_cards_that_do_not_ascend_and_settings_that_exclude_each_other_are_told() -> None:
    seen = {"ASCEND_RT_VISIBLE_DEVICES": "1,0"}
    (row,) = job_traps(SETTINGS, [process(1, **seen)])
    assert row["message"] == "ASCEND_RT_VISIBLE_DEVICES=1,0: its numbers do not ascend"
    both = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:50"}
    assert names(process(1, **both)) == ["allocator-settings"]
    assert names(process(1, PYTORCH_NPU_ALLOC_CONF="expandable_segments:True")) == []
