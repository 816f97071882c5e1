"""What a test replaces moves with the code that calls it, or stays with it.

    monkeypatch.setattr(torch.cuda, "is_available", …)     stays where every file of the project
    mock.patch("pkg.where.torch.cuda.device_count")        that the test imports keeps that call

A name that no file which the test reaches speaks of is a library's: it moves by its own rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.device_tests import is_test
from joymigrate.rewrite.files_together import ReachableFiles

BY_OBJECT = re.compile(r"\.(?:object|setattr|delattr)\(\s*$")
NAMED_BY = re.compile(r"[ \t]*(?:async )?def (\w+)")
NAMED = re.compile(r"\s*,\s*[\"'](\w+)[\"']")


def leave_replaced(
    findings: Iterable[Finding],
    platform: str,
    texts: Mapping[str, str],
    reached: ReachableFiles,
) -> list[Finding]:
    """The findings; what a test replaces is left as the calls of it are left.

    `platform` is the dotted name of the origin's module, `texts` are those of the Python files.
    """
    found = leave_mocked(findings, platform, texts)
    replaced = {n: name for n, one in enumerate(found) for name in names(one, platform, texts)}
    if not replaced:
        return found
    calls: dict[tuple[str, str], list[Finding]] = {}  # file and name
    apart: set[str] = set()  # names that some place keeps
    asked = re.compile(rf"{re.escape(platform)}\.(?:{'|'.join(set(replaced.values()))})\b")
    for number, one in enumerate(found):
        match = asked.match(one.before)
        if match is not None and number not in replaced:
            name = match[0].rpartition(".")[2]
            calls.setdefault((one.path, name), []).append(one)
            apart |= {name} if not one.edits or one.tier is not Tier.SAFE else set()
    for number, name in replaced.items():
        one = found[number]
        if name not in apart or one.path not in reached.files:
            continue
        own = calls_of(one.path, name, calls, reached)
        kept = next((each for each in own if not each.edits), None)
        if kept is not None and not any(each.edits for each in own):
            why = Text("it goes with {path}:{line}, which stays", path=kept.path, line=kept.line)
            found[number] = one.leave(why)
        elif own and not any(each.edits and each.tier is Tier.SAFE for each in own):
            told = one.reason or next((each.reason for each in own if each.edits), None)
            tier = max(one.tier, Tier.UNSAFE, key=TIERS.index)
            found[number] = replace(one, tier=tier, reason=told)
    return found


def leave_mocked(
    findings: Iterable[Finding], platform: str, texts: Mapping[str, str]
) -> list[Finding]:
    """The findings; calls that a test replaces through another module wait, as it stays.

    `monkeypatch.setattr(backend.torch.cuda, "current_stream", …)` in a test that speaks of the
    function with the call.
    """
    mocked = re.compile(rf"\b\w+\.{re.escape(platform)}\s*,\s*[\"'](\w+)[\"']")
    marks = [
        (path, text.count("\n", 0, mark.start()) + 1, f"{platform}.{mark[1]}")
        for path, text in texts.items()
        if f".{platform}," in text and is_test(path)
        for mark in mocked.finditer(text)
    ]
    found = list(findings)
    for number, one in enumerate(found if marks else ()):
        if not one.edits or one.tier is not Tier.SAFE or one.path not in texts:
            continue
        for path, line, name in marks:
            if path == one.path or not one.before.startswith(name):
                continue
            lines = texts[one.path].splitlines()[: one.line]
            homes = (NAMED_BY.match(each) for each in reversed(lines))
            home = next(filter(None, homes), None)
            if home is None or home[1] not in texts[path]:
                continue
            if re.search(rf"\b{home[1]}\b", texts[path]):
                why = Text("it goes with {path}:{line}, which stays", path=path, line=line)
                found[number] = one.doubt(why)
    return found


TIERS = (Tier.SAFE, Tier.UNSAFE, Tier.REPORT)


def names(finding: Finding, platform: str, texts: Mapping[str, str]) -> Iterator[str]:
    """The name of the origin's module that a rewritten place of a test replaces."""
    if not finding.edits or finding.rule != "JM101" or finding.path not in texts:
        return
    path = re.fullmatch(rf"[\"'](?:[\w.]+\.)?{re.escape(platform)}\.(\w+)[\"']", finding.before)
    if path is not None:
        yield path[1]
    elif finding.before == platform:
        lines = texts[finding.path].splitlines(keepends=True)
        before = "".join(lines[max(0, finding.line - 2) : finding.line - 1])
        before += lines[finding.line - 1][: finding.column - 1]
        after = lines[finding.end_line - 1][finding.end_column - 1 :]
        after += "".join(lines[finding.end_line : finding.end_line + 1])
        named = NAMED.match(after)
        if BY_OBJECT.search(before) and named is not None:
            yield named[1]


def calls_of(
    path: str, name: str, calls: Mapping[tuple[str, str], list[Finding]], reached: ReachableFiles
) -> list[Finding]:
    """Places that call a name: of the files that a test imports, else of all below those.

    Its own only where no other file calls it: they often say when the test is skipped.
    """
    for near in (reached.imported, reached.below):
        others = sorted(near(path) - {path})
        found = [each for other in others for each in calls.get((other, name), ())]
        if found:
            return found
    return calls.get((path, name), [])
