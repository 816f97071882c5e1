"""Whose a stop is: one pure function of what is known, and the rules that it asks in order.

What says itself comes first (a file that is not there, a signal from outside); then the program
before anything was changed; then the chip by its recorded answers, the vendor's package, our
rewriting, the simulation. Where no rule decides, nobody is accused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from joymigrate.blame import signs
from joymigrate.blame.exceptions import FATAL_ERROR, Frame, Raised
from joymigrate.blame.fold import fold
from joymigrate.blame.program import FOR_PROGRAM, is_fault, is_ours, package_of
from joymigrate.blame.stop import FrameOwner, OriginSite, Stop, StopEvidence
from joymigrate.chips.incompatible import Incompatibility
from joymigrate.language import Text

Reason = tuple[FrameOwner, Text, Text]  # whose, how that is known, what to do
Rule = Callable[[StopEvidence], "Reason | None"]


def judge(evidence: StopEvidence) -> Stop:
    """Why a program stopped. Its exit code is not 0."""
    whose, how, do = next(
        (found for rule in RULES if (found := rule(evidence)) is not None),
        nothing_decides(evidence),
    )
    return Stop(
        line=place(evidence),
        message=message(evidence),
        whose=whose,
        how_known=how,
        next=do,
        frames=tuple(fold(evidence.chain, evidence.program)),
        edits=row.edits if whose is FrameOwner.PACKAGE and (row := find_row(evidence)) else {},
    )


def raising_frame(evidence: StopEvidence) -> Frame | None:
    """The last frame of the program's own in the exception that ended it, else in what caused
    it."""
    for one in evidence.chain:
        for frame in reversed(one.frames):
            if evidence.program.holds(frame.file):
                return frame
    return None


def place(evidence: StopEvidence) -> str:
    """`train.py:60`: the line of the program that raised."""
    frame = raising_frame(evidence)
    return f"{evidence.program.name(frame.file)}:{frame.line}" if frame else ""


def message(evidence: StopEvidence) -> str:
    """What was said last, in one line."""
    if evidence.chain:
        return signs.first_line(evidence.chain[0].said)
    signal = signs.signal_name(evidence.code)
    if signal:
        return Text("killed by signal {signal}", signal=signal)
    if evidence.last:
        return signs.first_line(evidence.last)
    return Text("ended with exit code {code}", code=evidence.code)


def texts(evidence: StopEvidence) -> Iterator[str]:
    """What was said, of the last exception first."""
    if not evidence.chain:
        yield evidence.last
    for one in evidence.chain:
        yield one.said


def our_edit(evidence: StopEvidence) -> Reason | None:
    """A name or a module that is missing in a line that we wrote."""
    frame = frame_of_ours(evidence)
    if frame is None or not evidence.chain:
        return None
    name = signs.missing_name(evidence.chain[0])
    if name is None or (evidence.vendor.package and name.startswith(evidence.vendor.package)):
        return None
    how = Text(
        "the rewriting wrote {line}, and {name} is not there", line=place(evidence), name=name
    )
    return FrameOwner.REWRITE, how, report_edit(evidence)


def frame_of_ours(evidence: StopEvidence) -> Frame | None:
    """The raising frame, where the rewriting wrote its line."""
    frame = raising_frame(evidence)
    if frame is None:
        return None
    lines = evidence.written.get(evidence.program.name(frame.file), frozenset())
    return frame if frame.line in lines else None


def environment(evidence: StopEvidence) -> Reason | None:
    """What the machine, the command or the data lacks: it says so itself."""
    if signs.is_killed(evidence.code) and not evidence.chain:
        how = Text("the signal came from outside of the program")
        return FrameOwner.ENVIRONMENT, how, Text(signs.KILLED)
    chain: Iterable[Raised] = evidence.chain or (Raised("", evidence.last),)
    for one in chain:
        found = signs.lacking(one, evidence.versions, evidence.vendor.imports, evidence.own)
        if found is not None:
            if signs.is_ours_missing(one):
                continue
            return FrameOwner.ENVIRONMENT, *found
    return None


def no_gpu(evidence: StopEvidence) -> Reason | None:
    """The unchanged program asks for a GPU of the origin, and there is none."""
    if evidence.on_chip or not asks_for_origin(evidence):
        return None
    how = Text("the unchanged program asks for a GPU, and this machine has none")
    return FrameOwner.ENVIRONMENT, how, Text(signs.RECORD_ELSEWHERE)


def stand_in(evidence: StopEvidence) -> Reason | None:
    """What stands in for the origin's GPU or for the chip says that it can't."""
    for said in texts(evidence):
        if signs.SIMULATION.search(said) or re.search(evidence.vendor.missing_symbol, said):
            return FrameOwner.SIMULATION, Text(signs.SAYS_SO), Text(signs.NO_SIMULATION)
        if not evidence.on_chip and signs.HOST_LIMIT.search(said):
            return FrameOwner.SIMULATION, Text(signs.HOST_SAYS), Text(signs.RECORD_ON_GPU)
    frames = evidence.chain[0].frames if evidence.chain else ()
    if any(is_ours(one.file) and one.text == "then()" for one in frames):  # attach.py
        how = Text("it was raised as joymigrate began in what the program imports")
        return FrameOwner.SIMULATION, how, Text(signs.REPORT)
    asked = find_own_question(evidence) or find_own_call(evidence)
    raised = asked or innermost(evidence)
    if raised is None or not is_fault(raised.file, raised.text):
        return None
    if asked or is_raise(evidence.chain[0], raised):
        how = Text("it was raised in joymigrate's own {file}", file=raised.file.rpartition("/")[2])
        return FrameOwner.SIMULATION, how, Text(signs.REPORT)
    return None


def find_own_question(evidence: StopEvidence) -> Frame | None:
    """Our own line that asked for an attribute that is not there."""
    one = evidence.chain[0] if evidence.chain else None
    found = signs.MISSING_ATTRIBUTE.search(one.message) if one else None
    if one is None or found is None or one.name != "AttributeError":
        return None
    asked = re.compile(rf"\b{found[1]}\b")
    return next((f for f in one.frames if is_ours(f.file) and asked.search(f.text)), None)


def find_own_call(evidence: StopEvidence) -> Frame | None:
    """Our own line whose call the vendor's package refused: the program did not call it."""
    frames = evidence.chain[0].frames if evidence.chain else ()
    below = [*takewhile(lambda one: package_of(one.file), reversed(frames))]
    if all(package_of(one.file) != evidence.vendor.package for one in below):
        return None
    caller = frames[-len(below) - 1] if len(below) < len(frames) else None
    if caller is None or caller.file == FOR_PROGRAM or not is_fault(caller.file, caller.text):
        return None
    return caller


def missing_part(evidence: StopEvidence) -> Reason | None:
    """An installed package lacks a name that the program imports from it."""
    found = signs.MISSING_PART.search(evidence.chain[0].message) if evidence.chain else None
    raised = innermost(evidence)
    if found is None or raised is None or not evidence.program.holds(raised.file):
        return None
    package = found["module"].partition(".")[0]
    version = evidence.versions.get(package)
    if version is None or package in evidence.own or find_row(evidence) is not None:
        return None
    name = f"{found['module']}.{found['part']}"
    how = Text(signs.PART_KNOWN, package=package, version=version, module=name)
    return FrameOwner.ENVIRONMENT, how, Text(signs.PART_DO, package=package)


def original_stops(evidence: StopEvidence) -> Reason | None:
    """The program as it was ends in the same way."""
    if not evidence.on_chip:
        if not evidence.chain and not signs.signal_name(evidence.code):
            return None
        if evidence.chain and evidence.chain[0].kind == FATAL_ERROR:
            return None
        how = Text("it stopped here unchanged: no chip and no rewriting was involved")
        more = signs.further_lines(evidence.chain[0].said) if evidence.chain else ""
        do = Text(signs.MEND_AS_SAID, more=more) if more else Text(signs.MEND_FIRST)
        return FrameOwner.PROGRAM, how, do
    if not evidence.before or not evidence.chain:
        return None
    if signs.same(evidence.before[0], evidence.chain[0]):
        how = Text("the program as it was stops with the same error on this machine")
        return FrameOwner.PROGRAM, how, Text(signs.MEND_FIRST)
    return None


def chip(evidence: StopEvidence) -> Reason | None:
    """A recorded answer of the chip reached the program."""
    for said in texts(evidence):
        for row in evidence.refusals:
            code = str(row.get("code") or "")
            if (row["message"] and row["message"] in said) or (code and code in said):
                how = Text(
                    "the chip refuses {op}: {source}",
                    op=row["op"],
                    source=row.get("source") or row.get("grade", ""),
                )
                return FrameOwner.CHIP, how, Text.of(row.get("remedy") or signs.OTHER_CALL)
        refused = signs.REFERENCE_REFUSES.search(said)
        if refused:
            how = Text("the chip refuses this call: {source}", source=refused[1])
            return FrameOwner.CHIP, how, Text(signs.OTHER_CALL)
        found = re.search(evidence.vendor.runtime_code, said)
        if found:
            how = Text("{code} is an error code of the chip's runtime", code=found[1] or found[2])
            return FrameOwner.CHIP, how, Text(signs.ASK_CODE)
        if re.search(evidence.vendor.memory, said):
            how = Text("the chip's memory is as large as its model's data sheet says")
            return FrameOwner.CHIP, how, Text(signs.LESS_MEMORY)
    return None


def incompatible(evidence: StopEvidence) -> Reason | None:
    """A row of packages that don't go together explains an exception."""
    row = find_row(evidence)
    if row is None:
        return None
    how = Text(
        "{packages}: {why}; source: {source}",
        packages=row.named(evidence.versions), why=row.why, source=row.source,
    )  # fmt: skip
    return FrameOwner.PACKAGE, how, Text.of(row.do)


def find_row(evidence: StopEvidence) -> Incompatibility | None:
    """The first row that explains an exception."""
    for one in evidence.chain:
        for row in evidence.vendor.rows:
            if row.explains(one.said, [f.file for f in one.frames], evidence.versions):
                return row
    return None


def vendor(evidence: StopEvidence) -> Reason | None:
    """The vendor's package raised, or handed on what the raising call does not take."""
    if not evidence.chain or not evidence.vendor.package or asks_for_origin(evidence):
        return None
    one = evidence.chain[0]
    if signs.OUR_DEVICE.search(one.message):
        return None
    lacks = re.search(rf"module '({evidence.vendor.package}[\w.]*)' has no attribute", one.message)
    name = signs.MISSING_ATTRIBUTE.search(one.message)
    if lacks and name:
        how = Text("{module} has no {name} in this release", module=lacks[1], name=name[1])
        known = evidence.vendor.names
        alike = known.alike(f"{lacks[1]}.{name[1]}") if known else []
        words = {"package": evidence.vendor.package, "names": ", ".join(alike[:3])}
        help = Text(signs.NAME_ALIKE if alike else signs.NAME_LACKS, **words)
        return FrameOwner.PACKAGE, how, help
    code = re.search(evidence.vendor.package_code, one.message)
    if code:
        how = Text("{package} raised it, as {code}", package=evidence.vendor.package, code=code[0])
        return FrameOwner.PACKAGE, how, Text(signs.OTHER_CALL)
    raised = innermost(evidence)
    if raised is None:
        return None
    if package_of(raised.file) == evidence.vendor.package and is_raise(one, raised):
        how = Text("{file}:{line} raised it", file=in_package(raised), line=raised.line)
        return FrameOwner.PACKAGE, how, Text(signs.VENDOR_RAISED, package=evidence.vendor.package)
    argument = signs.wrong_argument(one)
    for frame in reversed(one.frames):
        if (
            argument
            and package_of(frame.file) == evidence.vendor.package
            and f"{argument}=" in frame.text
        ):
            how = Text(
                "{file}:{line} hands {argument} on",
                file=in_package(frame), line=frame.line, argument=argument,
            )  # fmt: skip
            return (
                FrameOwner.PACKAGE,
                how,
                Text(signs.VENDOR_RAISED, package=evidence.vendor.package),
            )
    return None


def third_party(evidence: StopEvidence) -> Reason | None:
    """A package that is neither torch nor the vendor's asks for the origin by itself."""
    raised = innermost(evidence)
    if raised is None or not evidence.chain or not is_raise(evidence.chain[0], raised):
        return None
    name = package_of(raised.file)
    if name in ("", "torch", evidence.vendor.package) or not signs.ORIGIN.search(
        evidence.chain[0].said
    ):
        return None
    how = Text("{package} raised it, which asks for CUDA by itself", package=name)
    return FrameOwner.ENVIRONMENT, how, Text(signs.OTHER_PACKAGE, package=name)


def origin_reached(evidence: StopEvidence) -> Reason | None:
    """The origin's word reached torch, or the program's own question for it came out wrong."""
    if not asks_for_origin(evidence):
        return None
    site = site_at(evidence)
    if site is not None:
        how = Text(
            "the rewriting left `{code}` there ({rule}): {reason}",
            code=site.code, rule=site.rule, reason=site.reason or "-",
        )  # fmt: skip
        return FrameOwner.REWRITE, how, Text(signs.MEND_SITE, line=place(evidence))
    if evidence.made:
        how = Text(
            "the origin's name was seen to reach torch while the program ran, at {places}",
            places=Text.join(", ", evidence.made[:3]),
        )
        return FrameOwner.REWRITE, how, Text(signs.NAME_WHILE_RUNNING, line=evidence.made[0])
    if evidence.names:
        how = Text(
            "the origin's name reached torch from outside of the code: {places}",
            places=Text.join("; ", evidence.names[:3]),
        )
        return FrameOwner.REWRITE, how, Text(signs.CHANGE_NAME)
    if not evidence.rewritten:
        how = Text("it asks for what CUDA alone has, and this run rewrote nothing")
        return FrameOwner.PROGRAM, how, Text(signs.REWRITE_FIRST)
    how = Text("the origin's name reached torch from a place that is not known")
    return FrameOwner.REWRITE, how, Text(signs.FIND_NAME)


def our_line(evidence: StopEvidence) -> Reason | None:
    """A line that we wrote raised, or it moved one of two tensors that meet."""
    if frame_of_ours(evidence) is not None:
        how = Text("the rewriting wrote {line}", line=place(evidence))
        return FrameOwner.REWRITE, how, report_edit(evidence)
    mixed = any(signs.MIXED.search(said) for said in texts(evidence))
    if mixed and evidence.before == () and evidence.written:
        how = Text("tensors of the host and of the chip meet, which they don't in the original")
        return FrameOwner.REWRITE, how, Text(signs.MEND_MIXED, line=place(evidence))
    return None


def bad_index(evidence: StopEvidence) -> Reason | None:
    """torch's own kernel says on the host that an index of the program's call is out of range."""
    raised = innermost(evidence)
    if raised is None or not is_ours(raised.file) or evidence.chain[0].name != "IndexError":
        return None
    if is_fault(raised.file, raised.text):
        return None
    how = Text("torch's own kernel on the host says so of this call's indices")
    return FrameOwner.PROGRAM, how, Text(signs.CHECK_INDEX)


def our_reference(evidence: StopEvidence) -> Reason | None:
    """Words of the simulated device that are no answer of a chip, or an error of Python's own in a
    file of ours."""
    if any(signs.OUR_DEVICE.search(said) for said in texts(evidence)):
        return FrameOwner.SIMULATION, Text(signs.SAYS_SO), Text(signs.NO_SIMULATION)
    raised = innermost(evidence)
    if raised is None or not is_fault(raised.file, raised.text):
        return None
    if evidence.chain[0].name == "RuntimeError":
        return None  # torch's kernels raise RuntimeError below our frames
    how = Text("it was raised in joymigrate's own {file}", file=raised.file.rpartition("/")[2])
    return FrameOwner.SIMULATION, how, Text(signs.REPORT)


def nothing_decides(evidence: StopEvidence) -> Reason:
    """No rule knows whose it is: what would tell."""
    if evidence.on_chip and evidence.before is None:
        how = Text("nothing that is known decides it: how the unchanged program ends is not known")
        return FrameOwner.UNKNOWN, how, Text(signs.RUN_UNCHANGED)
    if evidence.on_chip and evidence.before == ():
        how = Text("nothing that is known decides it: the unchanged program runs to its end here")
        return FrameOwner.UNKNOWN, how, Text(signs.COMPARE)
    return FrameOwner.UNKNOWN, Text("nothing that is known decides it"), Text(signs.READ_LOG)


RULES: tuple[Rule, ...] = (
    our_edit,
    environment,
    no_gpu,
    chip,
    stand_in,
    missing_part,
    original_stops,
    incompatible,
    vendor,
    third_party,
    origin_reached,
    our_line,
    bad_index,
    our_reference,
)


def asks_for_origin(evidence: StopEvidence) -> bool:
    """Whether the last exception is about the origin's device: by its words, or by the line of
    the program that asked."""
    said = [*texts(evidence)]
    if any(signs.ORIGIN.search(one) or signs.NO_CUDA_LIBRARY.search(one) for one in said):
        return True
    frame = innermost(evidence)
    own = frame is not None and evidence.program.holds(frame.file)
    return bool(own and frame and signs.QUESTION.search(frame.text))


def innermost(evidence: StopEvidence) -> Frame | None:
    """The innermost frame of the last exception."""
    frames = evidence.chain[0].frames if evidence.chain else ()
    return frames[-1] if frames else None


def is_raise(one: Raised, frame: Frame) -> bool:
    """Whether Python code of that frame raised, not native code that it called."""
    return frame.text.startswith("raise") or one.name in signs.PYTHON_ERRORS


def site_at(evidence: StopEvidence) -> OriginSite | None:
    """The site of the origin's name that was left in the line that raised: others there are
    beside it."""
    where = place(evidence)
    found = (site for site in evidence.left if site.where == where)
    return next((site for site in found if signs.WORD.search(site.code)), None)


def in_package(frame: Frame) -> str:
    """A file as its package names it: `accelerate/optimizer.py`."""
    return frame.file.partition("-packages/")[2] or frame.file


def report_edit(evidence: StopEvidence) -> Text:
    """What to do about an edit of ours that raises."""
    return Text(signs.MEND_EDIT, line=place(evidence))
