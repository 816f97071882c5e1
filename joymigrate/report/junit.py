"""Coverage as JUnit XML: one test case per operator, so that a CI shows each gap by itself."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from joymigrate.profile.coverage import Coverage, CoveredOperator

# What XML 1.0 can't hold.
CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(coverage: Coverage) -> str:
    """One test suite."""
    gaps = len(coverage.gaps())
    suite = ElementTree.Element(
        "testsuite",
        name=f"operators on {coverage.chip} {coverage.version}",
        tests=str(len(coverage.ops)),
        failures=str(gaps),
        errors="0",
        skipped="0",
        time=f"{sum(op.self_us for op in coverage.ops) / 1e6:.6f}",
    )
    for op in coverage.ops:
        suite.append(case(op, coverage))
    whole = ElementTree.Element("testsuites", tests=str(len(coverage.ops)), failures=str(gaps))
    whole.append(suite)
    ElementTree.indent(whole)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        + ElementTree.tostring(whole, encoding="unicode")
        + "\n"
    )


def case(op: CoveredOperator, coverage: Coverage) -> ElementTree.Element:
    """One operator; a gap is a failure with all that is known."""
    name = f"{op.name} {' '.join(op.dtypes)}".strip()
    found = ElementTree.Element(
        "testcase",
        classname=f"joymigrate.coverage.{coverage.chip}",
        name=clean(name),
        time=f"{op.self_us / 1e6:.6f}",
    )
    if op.where:
        path, _, line = op.where.rpartition(":")
        found.set("file", clean(path))
        found.set("line", line)
    if op.status.supported:
        return found
    said = op.note or op.status.value
    failure = ElementTree.SubElement(found, "failure", type=op.status.value, message=clean(said))
    lines = [
        f"calls: {op.calls}",
        f"dtypes: {' '.join(op.dtypes)}",
        *(f"at: {site.where} ({site.calls} calls)" for site in op.sites),
        f"instead: {op.alternative}",
        f"source: {op.source}",
        f"grade: {op.known_grade or '-'}",
    ]
    failure.text = clean("\n".join(lines))
    return found


def clean(text: str) -> str:
    """Text without what XML can't hold."""
    return CONTROL.sub("�", text)
