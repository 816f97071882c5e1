"""Reads a recorded environment and names what stands in the way, the deepest cause first.

A record may be partial: somebody else's message holds an error and two versions. What it does not
hold is named as not looked at, never taken as good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joymigrate.chips import Chip
from joymigrate.chips.codes import ErrorCode, find_codes
from joymigrate.chips.incompatible import read_incompatible
from joymigrate.environment import fit
from joymigrate.environment.rules import DoctorRules, EnvironmentCause, rules_of
from joymigrate.errors import JoyError

BROKEN, DOUBTFUL = "broken", "doubtful"
NAMELESS, CODED = "unrecognised", "error-code"
LAYER_OF_ROWS = 66  # of doctor.yaml: beside releases that the table of versions does not list
FRAMES = {"package"}  # codes that frame every error of the package and name no cause
PARTS = {
    "devices": "device files",
    "driver": "the driver's version",
    "smi": "the cards' state",
    "sdk": "the SDK's version and kernels",
    "packages": "Python packages",
    "variables": "environment variables",
    "memory": "shared memory and huge pages",
    "network": "the network between cards",
}
SHM_BYTES = 1 << 30  # Docker gives 64 MiB unless told; several loaders and ranks need more
FAULTS = {"alarm", "critical", "fault", "offline", "abnormal"}


@dataclass(frozen=True, slots=True)
class EnvironmentFinding:
    """One cause. `broken`: it fails, or failed; `doubtful`: nobody who was read says it works."""

    cause: str
    severity: str
    what: str
    fix: str
    evidence: str
    source: str = ""
    layer: int = 99


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, the next to mend first, and what the record does not hold."""

    chip: str
    findings: tuple[EnvironmentFinding, ...]
    missing: tuple[str, ...]

    @property
    def next(self) -> EnvironmentFinding | None:
        """The one thing to mend next."""
        return self.findings[0] if self.findings else None

    @property
    def broken(self) -> bool:
        """Whether anything is known to fail."""
        return any(one.severity == BROKEN for one in self.findings)


def diagnose(environment: Mapping[str, Any], chip: Chip) -> Diagnosis:
    """What stands in the way on the recorded machine. JoyError where nothing is known of the chip.

    A program's own error comes before what is only in doubt; among equals the deepest layer first.
    An error that no rule knows is a finding too, the last one: it failed, whatever else is found.
    """
    rules = rules_of(chip)
    if rules is None:
        raise JoyError(f"nothing is known about setting up {chip.title}", where=str(chip.folder))
    causes = {**causes_of_rows(chip), **rules.causes}
    known: dict[str, EnvironmentFinding] = {}
    for cause, severity, evidence, source in all_signs(environment, chip, rules):
        told = causes.get(cause)
        if told is None:
            raise JoyError(f"no cause is called '{cause}'", where=str(chip.folder / "doctor.yaml"))
        one = EnvironmentFinding(cause, severity, told.what, told.fix, evidence, source, told.layer)
        if cause not in known or severity == BROKEN != known[cause].severity:
            known[cause] = one
        elif evidence not in known[cause].evidence and severity == known[cause].severity:
            known[cause] = replace(known[cause], evidence=f"{known[cause].evidence}; {evidence}")
    if any(one.severity == BROKEN and one.cause != "autoload" for one in known.values()):
        known.pop("autoload", None)  # the frame around the error that was named
    ordered = sorted(
        known.values(), key=lambda one: (one.cause == NAMELESS, one.severity != BROKEN, one.layer)
    )
    missing = [text for key, text in PARTS.items() if environment.get(key) is None]
    return Diagnosis(chip.name, tuple(ordered), (*missing, *fit.name_unjudged(environment, chip)))


def causes_of_rows(chip: Chip) -> Mapping[str, EnvironmentCause]:
    """What is known of packages together, by the name of its row."""
    rows = read_incompatible(chip.folder)
    return {row.name: EnvironmentCause(LAYER_OF_ROWS, row.why, row.do) for row in rows}


Signal = tuple[str, str, str, str]  # cause, severity, evidence, source


def all_signs(environment: Mapping[str, Any], chip: Chip, rules: DoctorRules) -> Iterator[Signal]:
    """Everything that speaks for a cause, from errors and from what is installed."""
    yield from from_errors(environment, chip, rules)
    yield from from_devices(environment, rules)
    yield from from_sdk(environment, rules)
    yield from from_memory(environment)
    yield from fit.from_versions(environment, chip)


def from_errors(environment: Mapping[str, Any], chip: Chip, rules: DoctorRules) -> Iterator[Signal]:
    """The words of errors, and of the tool that lists the cards when it failed: by the patterns
    of `doctor.yaml`, and where none fits by the error codes among them."""
    texts = list(environment.get("errors") or ())
    smi = environment.get("smi") or {}
    if smi.get("exit_code"):
        texts.append(str(smi.get("output", "")))
    joined = [" ".join(str(text).split()) for text in texts]
    facts = environment.get("facts") or {}
    named = [(text, found) for text in joined if (found := rules.cause_of(text, facts))]
    for text, sign in named:
        shown = f"{excerpt(text)}; {facts[sign.fact]}" if sign.fact else excerpt(text)
        yield sign.cause, BROKEN, shown, sign.source
    versions = environment.get("packages") or {}
    rows = () if named else read_incompatible(chip.folder)
    told = [(row, text) for row in rows for text in joined if row.may_explain(text, versions)]
    for row, text in told:
        yield row.cause or row.name, BROKEN, excerpt(text), row.source
    if named or told or not any(joined):
        return
    coded = [one for text in joined for one in find_codes(chip, text) if one.of not in FRAMES]
    for one in sorted(coded, key=lambda one: not one.cause)[:1]:
        yield one.cause or CODED, BROKEN, name_code(one), one.source
    if not coded:
        yield NAMELESS, BROKEN, excerpt(next(filter(None, joined))), ""


def name_code(one: ErrorCode) -> str:
    """What a code stands for, in one line."""
    words = f"{one.code} {one.name}".strip()
    return f"{words}: {one.meaning}" + (f"; {one.do}" if one.do else "")


def excerpt(text: str) -> str:
    """The end of an error, where it says what happened."""
    return text if len(text) <= 200 else "… " + text[-200:]


def from_devices(environment: Mapping[str, Any], rules: DoctorRules) -> Iterator[Signal]:
    """Device files, who may open them, the cards' health, the cards that are hidden."""
    devices = environment.get("devices")
    stem = rules.record.cards.partition("[")[0]
    if devices is not None:
        cards = [name for name in devices if name.removeprefix(stem).isdigit()]
        # A record looked for all files; a message names those that a tool did not find.
        unlisted = [name for name in (stem, *rules.record.shared) if name not in devices]
        absent = environment.get("absent", unlisted)
        if not cards and any(name.startswith(stem) for name in absent):
            yield "no-device", BROKEN, f"no {rules.record.cards}", ""
        elif lacking := [name for name in rules.record.shared if name in absent]:
            yield "device-missing", BROKEN, ", ".join(lacking), ""
        if cards and (environment.get("driver") or {}).get("libraries") is False:
            yield "driver-missing", BROKEN, "device files without the driver's libraries", ""
        shut = [name for name, facts in devices.items() if may_open(facts, environment) is False]
        if shut:
            yield "device-permission", BROKEN, ", ".join(shut), ""
    smi = environment.get("smi") or {}
    for card in smi.get("cards") or ():
        health = str(card.get("health", "OK"))
        if health.casefold() not in ("ok", "", "-", "na"):
            severity = BROKEN if health.casefold() in FAULTS else DOUBTFUL
            yield "card-unhealthy", severity, f"card {card.get('id')}: {health}", ""
    yield from hidden_cards(environment, rules, stem)


def may_open(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> bool | None:
    """Whether the recorded user may read and write a device file; None where it is not known."""
    if facts.get("access") is not None:
        return bool(facts["access"])
    machine = environment.get("machine") or {}
    mode, uid = facts.get("mode"), machine.get("uid")
    if mode is None or uid is None:
        return None
    bits = int(str(mode), 8)
    if uid == 0:
        return True
    if uid == facts.get("uid"):
        return bits & 0o600 == 0o600
    if facts.get("gid") in (machine.get("gids") or ()):
        return bits & 0o060 == 0o060
    return bits & 0o006 == 0o006


def hidden_cards(environment: Mapping[str, Any], rules: DoctorRules, stem: str) -> Iterator[Signal]:
    """Indices of the variable that hides cards, against the number of cards."""
    name = rules.record.visible
    variables = environment.get("variables") or {}
    text = str(variables.get(name) or "").strip()
    cards = (environment.get("smi") or {}).get("cards")
    devices = environment.get("devices")
    count = len(cards) if cards else None
    if count is None and devices:
        count = sum(one.removeprefix(stem).isdigit() for one in devices)
    if not text:
        if name in variables and variables[name] is not None and count:
            yield "visible-devices", BROKEN, f"{name} is set and empty: it hides all cards", ""
        return
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        yield "visible-devices", BROKEN, f"{name}={text}: not a list of numbers", ""
    elif parts != sorted(parts, key=int):
        said = f"{name}={text}: not ascending; from the first smaller number on no card is seen"
        yield "visible-devices", BROKEN, said, ""
    elif count and any(int(part) >= count for part in parts):
        yield "visible-devices", BROKEN, f"{name}={text}, and {count} cards", ""


def from_sdk(environment: Mapping[str, Any], rules: DoctorRules) -> Iterator[Signal]:
    """Whether the SDK is there, sourced, and has kernels."""
    sdk = environment.get("sdk")
    if sdk is None:
        return
    if sdk.get("found") is False:
        yield "sdk-not-loaded", BROKEN, "no SDK at the usual places", ""
    elif sdk.get("sourced") is False:
        yield "sdk-not-loaded", BROKEN, f"{sdk.get('home')} is there and not sourced", ""
    if sdk.get("found") and sdk.get("kernels") == []:
        yield "kernels-missing", DOUBTFUL, f"no compiled kernels below {sdk.get('home')}", ""
    packages, addons = environment.get("packages") or {}, sdk.get("addons")
    if not sdk.get("found") or not addons:
        return
    for addon, names in rules.record.sdk.needed_by.items():
        for name in names:
            if packages.get(name) and addons.get(addon) is None:
                text = f"{name} {packages[name]} is here and {addon} is not"
                yield f"{addon}-missing", BROKEN, text, ""


def from_memory(environment: Mapping[str, Any]) -> Iterator[Signal]:
    """Shared memory for several cards; addresses between machines."""
    memory = environment.get("memory") or {}
    if memory.get("shm_free_bytes") == 0:
        yield "shared-memory-full", BROKEN, f"{memory['shm_bytes'] >> 20} MiB, none free", ""
    shared = memory.get("shm_bytes")
    cards: Sequence[Any] = (environment.get("smi") or {}).get("cards") or ()
    if shared is not None and shared < SHM_BYTES and len(cards) > 1:
        yield "shared-memory", DOUBTFUL, f"{shared >> 20} MiB for {len(cards)} cards", ""
    network = environment.get("network") or {}
    without = [card for card, facts in network.items() if not facts.get("address")]
    if without and len(without) < len(network):  # some have one: a machine of a cluster
        yield "card-network", DOUBTFUL, f"no address: cards {', '.join(without)}", ""
    down = [card for card, facts in network.items() if facts.get("link") == "DOWN"]
    if down and any(facts.get("link") == "UP" for facts in network.values()):
        yield "card-network", DOUBTFUL, f"no link: cards {', '.join(down)}", ""
