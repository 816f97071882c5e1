"""HCCL rank tables (version 1.0 `server_list`, 1.2 with super-pods), checked."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.run.cluster.preflight import Pods, PreflightFault


def check(table: Any, pods: Pods | None = None, where: str = "rank table") -> list[PreflightFault]:
    """Faults of a rank table by itself, and against the planned pods when they are given."""
    servers = table.get("server_list") if isinstance(table, dict) else None
    if not isinstance(servers, list) or not servers:
        return [PreflightFault(where, "no `server_list`", "generate it again")]
    faults: list[PreflightFault] = []
    if str(table.get("status", "completed")) != "completed":
        what = f"its status is '{table['status']}'"
        faults.append(PreflightFault(where, what, "wait until all pods are in"))
    if str(table.get("server_count", len(servers))) != str(len(servers)):
        what = f"server_count is {table['server_count']}, it lists {len(servers)}"
        faults.append(PreflightFault(where, what, "correct server_count"))
    ranks: dict[int, str] = {}
    addresses: dict[str, str] = {}
    for server in servers:
        name = str(server.get("server_id", "?"))
        seen: set[str] = set()
        for device in server.get("device") or ():
            at = f"{where}: server {name} device {device.get('device_id')}"
            faults += device_faults(device, at, ranks, addresses, seen)
        if not server.get("device"):
            faults.append(
                PreflightFault(f"{where}: server {name}", "it has no device", "remove it")
            )
    missing = [rank for rank in range(len(ranks)) if rank not in ranks]
    if missing:
        what = f"ranks {', '.join(map(str, missing[:8]))} are missing"
        faults.append(PreflightFault(where, what, "ranks run from 0 without a gap"))
    return faults + (against(servers, pods, where) if pods is not None else [])


def device_faults(
    device: Mapping[str, Any],
    at: str,
    ranks: dict[int, str],
    addresses: dict[str, str],
    seen: set[str],
) -> list[PreflightFault]:
    """One device: its rank and address are its own."""
    faults = []
    try:
        rank = int(device.get("rank_id", ""))
    except ValueError:
        return [PreflightFault(at, f"rank_id is {device.get('rank_id')!r}", "a number is wanted")]
    if rank in ranks:
        faults.append(
            PreflightFault(at, f"rank {rank} is also {ranks[rank]}", "one rank per device")
        )
    ranks[rank] = at
    card = str(device.get("device_id"))
    if card in seen:
        faults.append(PreflightFault(at, f"device {card} is listed twice", "list it once"))
    seen.add(card)
    address = str(device.get("device_ip") or "")
    if address:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            faults.append(PreflightFault(at, f"'{address}' is no address", "correct device_ip"))
        if address in addresses:
            what = f"{address} is also {addresses[address]}"
            faults.append(PreflightFault(at, what, "one address per device"))
        addresses[address] = at
    return faults


def against(servers: Sequence[Mapping[str, Any]], pods: Pods, where: str) -> list[PreflightFault]:
    """The table against the plan: same nodes, same cards, ranks in the plan's order."""
    listed: dict[int, tuple[str, int]] = {}
    for server in servers:
        names = {str(server.get("server_id")), str(server.get("host_ip") or "")}
        for device in server.get("device") or ():
            text = str(device.get("rank_id", ""))
            if text.isdigit():
                name = next(
                    (node for node, _ in pods if node in names), min(names - {""}, default="")
                )
                listed[int(text)] = (name, int(device.get("device_id", -1)))
    planned = [(node, card) for node, cards in pods for card in cards]
    if len(planned) != len(listed):
        what = f"it lists {len(listed)} devices, {len(planned)} are planned"
        return [PreflightFault(where, what, "generate it from the plan")]
    return [
        PreflightFault(
            f"{where}: rank {rank}",
            f"is {listed[rank][0]} card {listed[rank][1]}, planned is {node} card {card}",
            "generate it from the plan",
        )
        for rank, (node, card) in enumerate(planned)
        if rank in listed and listed[rank] != (node, card)
    ]
