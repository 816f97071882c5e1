"""Huawei's `hccn_tool -i N -link -g`, `-ip -g`, `-net_health -g` and HCCS state, recorded.

The recording is a text in which each answer follows a line that names its card: `device 3:` or the
command itself (`hccn_tool -i 3 -link -g`).
"""

from __future__ import annotations

import ipaddress
import re

from joymigrate.run.cluster.preflight import PreflightFault

CARD = re.compile(
    r"(?:hccn_tool\s+-i\s+(\d+))|(?:^\s*(?:device|NPU|card)\s*:?\s*(\d+)\s*:?\s*$)", re.I
)
LINK = re.compile(r"link\s+status\s*:\s*(\w+)", re.I)
ADDRESS = re.compile(r"ipaddr\s*:\s*(\S+)", re.I)
HEALTH = re.compile(r"net\s+health\s+status\s*:\s*(.+)", re.I)
LANES = re.compile(r"hccs\s+(?:link\s+|lane\s+)?status\s*:\s*(\w+)", re.I)


def links(text: str, cards: int | None = None, where: str = "record") -> list[PreflightFault]:
    """Faults of the cards' links: down, unhealthy, without an address, two with the same one."""
    faults: list[PreflightFault] = []
    seen: dict[int, dict[str, str]] = {}
    card: int | None = None
    for line in text.splitlines():
        head = CARD.search(line)
        if head:
            card = int(head.group(1) or head.group(2))
            seen.setdefault(card, {})
            continue
        if card is None:
            continue
        for key, form in (("link", LINK), ("ip", ADDRESS), ("health", HEALTH), ("hccs", LANES)):
            match = form.search(line)
            if match:
                seen[card][key] = match.group(1).strip()
    if not seen and cards is None:
        remedy = "record `hccn_tool -i N -link -g` of every card, each answer behind its command"
        return [PreflightFault(where, "names no card: nothing was checked", remedy)]
    wanted = range(cards) if cards is not None else sorted(seen)
    for number in wanted:
        faults += card_faults(number, seen.get(number), where)
    return faults + twice(seen, where)


def card_faults(number: int, found: dict[str, str] | None, where: str) -> list[PreflightFault]:
    """What is wrong with one card."""
    at = f"{where}: card {number}"
    if not found:
        return [
            PreflightFault(at, "nothing was recorded", f"record `hccn_tool -i {number} -link -g`")
        ]
    faults = []
    if found.get("link", "UP").upper() != "UP":
        remedy = "check cable, optical module and switch port"
        faults.append(PreflightFault(at, f"its RoCE link is {found['link']}", remedy))
    health = found.get("health", "Success")
    if health.lower() not in ("success", "init", "ok", "healthy"):
        faults.append(
            PreflightFault(at, f"its network health is '{health}'", "check gateway and routes")
        )
    if found.get("hccs", "UP").upper() not in ("UP", "OK", "NORMAL"):
        faults.append(
            PreflightFault(at, f"its HCCS link is {found['hccs']}", "take the node out of service")
        )
    if "ip" in found:
        try:
            ipaddress.ip_address(found["ip"])
        except ValueError:
            faults.append(
                PreflightFault(at, f"'{found['ip']}' is no address", "set it: hccn_tool -ip -s")
            )
    return faults


def twice(seen: dict[int, dict[str, str]], where: str) -> list[PreflightFault]:
    """Cards that share an address."""
    by_address: dict[str, list[int]] = {}
    for card, found in seen.items():
        if "ip" in found:
            by_address.setdefault(found["ip"], []).append(card)
    return [
        PreflightFault(
            where, f"cards {', '.join(map(str, cards))} have the address {address}", "one each"
        )
        for address, cards in by_address.items()
        if len(cards) > 1
    ]
