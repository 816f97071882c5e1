"""JUnit XML of any noun: one test case per thing that a build server shows by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

# What XML 1.0 can't hold.
CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class JunitCase:
    """One case: passed, unless it has the message of a `failure` or says why it was `skipped`.

    `details` stand below a failure, `kind` is its type; `where` is `file:line`.
    """

    name: str
    seconds: float
    failure: str | None = None
    details: str = ""
    kind: str = ""
    skipped: str | None = None
    output: str = ""
    where: str = ""

    def element(self, classname: str) -> ElementTree.Element:
        """The case as XML."""
        made = ElementTree.Element(
            "testcase", classname=classname, name=clean(self.name), time=f"{self.seconds:.6f}"
        )
        path, _, line = self.where.rpartition(":")
        if path:
            made.set("file", clean(path))
            made.set("line", line)
        if self.failure is not None:
            failure = ElementTree.SubElement(made, "failure", message=clean(self.failure))
            failure.text = clean(self.details)
            if self.kind:
                failure.set("type", self.kind)
        elif self.skipped is not None:
            ElementTree.SubElement(made, "skipped", message=clean(self.skipped))
        elif self.output:
            ElementTree.SubElement(made, "system-out").text = clean(self.output)
        return made


def render(name: str, classname: str, cases: Sequence[JunitCase]) -> str:
    """One test suite."""
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(cases)),
        failures=str(sum(one.failure is not None for one in cases)),
        errors="0",
        skipped=str(sum(one.skipped is not None for one in cases)),
        time=f"{sum(one.seconds for one in cases):.6f}",
    )
    suite.extend(one.element(classname) for one in cases)
    ElementTree.indent(suite)
    shown = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{shown}\n'


def clean(text: str) -> str:
    """Text without what XML can't hold."""
    return CONTROL.sub("�", text)
