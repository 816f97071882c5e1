"""The last word on a project's edits: places that hold one value move together or stay together.

Every text that names the origin's device or backend and stays (a user's ignore, a file that is left
out, a comparison in front of what the target lacks) is a fact. It reaches a class of places through
what holds the same value and what is compared with it, in all files (`values`). A class that such a
fact reaches is held whole, with the conditions that its values stand behind, until nothing changes.
"""

from __future__ import annotations

import bisect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.device_tests import is_test, is_waiting
from joymigrate.rewrite.module import StayingPlace
from joymigrate.rewrite.values import growth
from joymigrate.rewrite.values.cells import COMPARED, COMPARISON, GOES, Cell, Guard, TextPlace
from joymigrate.rewrite.values.graph import ValueGraph, home_of
from joymigrate.rewrite.values.growth import State, follow, grow, sources, way_to
from joymigrate.rewrite.values.settings_files import is_settings
from joymigrate.rewrite.vocabulary import Vocabulary

CLASS = 300  # cells of one class; a larger one is not known as a whole: what it holds needs review
ANSWERS = 3000  # cells that a question's answer, and the value of a larger class, is followed to
READ = 40  # files that are read for one class, besides those that were read already
HELD = "one value with `{text}` ({path}:{line}), which stays"
WAITS = "one value with `{text}` ({path}:{line}), which needs review"
GUARDS = "it stands before `{text}` ({path}:{line}), which stays"
GUARDS_WAITING = "it stands before `{text}` ({path}:{line}), which needs review"
BESIDE = "it goes with `{text}` ({path}:{line}), which stays"
BESIDE_WAITING = "it goes with `{text}` ({path}:{line}), which needs review"
SERVED = "its value is asked for `{text}` as well (line {line})"
Site = tuple[str, int, int]  # file, line and column of a finding
Place = tuple[str, StayingPlace]  # with its file
Way = tuple[tuple[str, int, str], ...]  # lines that a value goes through: file, line, and how
IGNORED = re.compile(r"joymigrate:\s*ignore")
QUESTION = re.compile(r"\bget_device_(?:capability|name|properties)\s*\(")  # of the card
# Lines that set switches of the origin's libraries, or tell people something and call no more than
# a question for the card.
HARMLESS = re.compile(
    r"(?:[ \t]*(?:(?:torch\.backends\.|cudnn\.)[\w.]+[ \t]*=[^=\n;()][^\n;()]*"
    r"|(?:print|warnings\.warn|log(?:ger|ging)?\.\w+)"
    r"\((?:[^\n;()]|\bget_device_\w+\([^\n;()]*\))*\)|pass|#[^\n]*)?(?:\n|$))+"
)
ORIGINS = re.compile(rf"{QUESTION.pattern}|torch\.backends\.|\bcudnn\.")
FLAG = re.compile(r"is_\w+$")  # `is_cuda` of `x.is_cuda`
SILENT = ("read", "inherited", "fixture")  # edges that no line of their own says
PLACED = (Tier.SAFE, Tier.UNSAFE)


@dataclass(frozen=True, slots=True)
class TierDecision:
    """Why a finding is held: the tier that it falls to, the reason, and the way of the fact."""

    tier: Tier
    reason: str
    way: Way = ()


@dataclass(slots=True)
class Solver:
    """Decides the edits of Python files of one project."""

    graph: ValueGraph
    findings: list[Finding]
    targets: re.Pattern[str]  # texts that name the target
    held: dict[int, TierDecision] = field(default_factory=dict)
    _spans: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    _groups: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _places: dict[int, list[Place]] = field(default_factory=lambda: defaultdict(list))
    _texts: dict[str, list[tuple[Cell, int, int]]] = field(default_factory=dict)
    _closed: set[tuple[str, int, int, Tier]] = field(default_factory=set)  # conditions
    _asked: list[Place] = field(default_factory=list)  # places whose conditions are still to hold

    def __post_init__(self) -> None:
        spans: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for number, each in enumerate(self.findings):
            if each.group:
                self._groups[each.group].append(number)
            for start, end in self.spans(each) if each.rule != "JM001" else ():
                spans[each.path].append((start, end, number))
        self._spans = {path: sorted(found) for path, found in spans.items()}

    # -- places --------------------------------------------------------------------------------

    def tier(self, number: int) -> Tier:
        """The tier of a finding as it stands now."""
        return self.held[number].tier if number in self.held else self.findings[number].tier

    def spans(self, finding: Finding) -> list[tuple[int, int]]:
        """Bytes of a text that a finding would change; of a notebook, all that it names."""
        if finding.path not in self.graph.cells or not finding.edits:
            return [(edit.start, edit.end) for edit in finding.edits]
        source = self.graph.load(finding.path)
        if source is None:
            return []
        first = self.graph.line(finding)
        last = first + finding.end_line - finding.line
        start = source.starts[first - 1] + finding.column - 1
        end = source.starts[last - 1] + finding.end_column - 1
        return [(source.to_bytes(start), source.to_bytes(end))]

    def over(self, path: str, start: int, end: int) -> list[int]:
        """Findings with an edit between two offsets of a file's text."""
        spans = self._spans.get(path, ())
        source = self.graph.load(path) if spans else None
        if source is None:
            return []
        first, last = source.to_bytes(start), source.to_bytes(end)
        at = max(0, bisect.bisect_left(spans, (first, 0, 0)) - 1)
        found = []
        for begin, finish, number in spans[at:]:
            if begin > last:
                break
            if (begin < last and finish > first) or (begin == finish and first <= begin < last):
                found.append(number)
        return found

    def moves(self, path: str, at: int) -> bool:
        """Whether a text that starts at an offset is moved by default."""
        return any(self.tier(number) is Tier.SAFE for number in self.over(path, at, at + 3))

    def text(self, path: str, place: TextPlace) -> str:
        """What a place says, in one line."""
        return " ".join(self.graph.texts[path][place.start : place.end].split())

    def texts(self, path: str) -> list[tuple[Cell, int, int]]:
        """The texts of a file, each with its span in bytes."""
        home, source = self.graph.file(path), self.graph.load(path)
        if path not in self._texts and home is not None and source is not None:
            self._texts[path] = [
                (cell, source.to_bytes(place.start), source.to_bytes(place.end))
                for cell, place in home.places.items()
            ]
        return self._texts.get(path, [])

    def place(self, cell: Cell) -> TextPlace | None:
        """The place of a text."""
        return place_of(self.graph, cell)

    def names_target(self, cell: Cell) -> bool:
        """Whether a text names the target."""
        place = self.place(cell)
        return place is not None and bool(
            self.targets.search(self.graph.texts[cell[1]][place.start : place.end])
        )

    # -- the fixpoint --------------------------------------------------------------------------

    def solve(
        self, paths: Iterable[str], staying: Iterable[tuple[str, StayingPlace]]
    ) -> dict[int, TierDecision]:
        """Hold what the texts that stay in `paths` reach, and the conditions before other places
        that stay; findings by number."""
        self._asked = list(staying)
        for path, each in self._asked:
            for number in self.over(path, each.start, each.end):
                self._places[number].append((path, each))
        todo = self.keep_asked()
        todo += [cell for path in self.graph.texts for cell in self.serve(path)]
        todo += [cell for path in paths for cell in self.staying(path)]
        seen: set[tuple[Cell, Tier]] = set()
        while todo or self._asked:
            todo += self.keep_asked()
            cell = todo.pop() if todo else None
            tier = self.state(cell) if cell is not None else Tier.SAFE
            if cell is None or tier is Tier.SAFE or (cell, tier) in seen:
                continue
            seen.add((cell, tier))
            todo += self.spread(cell, tier)
        return self.held

    def keep_asked(self) -> list[Cell]:
        """Hold what the places that are noted for it stand behind; gives texts that stay."""
        found: list[Cell] = []
        seen: set[tuple[Place, Tier]] = set()
        for path, place in self._asked:  # grows on the way
            known = ((path, place), self.fate(path, place))
            if known not in seen:
                seen.add(known)
                found += self.keep(path, place)
        self._asked.clear()
        return found

    def serve(self, path: str) -> Iterator[Cell]:
        """Hold questions of a file whose value is asked for the target as well, by itself."""
        if not self._spans.get(path) or not self.targets.search(self.graph.texts[path]):
            return
        home = self.graph.file(path)
        for cell in home.places if home is not None else ():
            other = next(filter(self.names_target, asked_beside(self.graph, cell)), None)
            place, there = self.place(cell), self.place(other) if other is not None else None
            if place is not None and there is not None and not self.names_target(cell):
                words = {"text": self.text(other[1], there), "line": there.line}  # type: ignore[index]
                why = TierDecision(Tier.REPORT, Text(SERVED, **words))
                for number in self.over(path, place.start, place.end):
                    yield from self.hold(number, why)

    def staying(self, path: str) -> list[Cell]:
        """Texts of a file that name the origin and are not moved by default."""
        home = self.graph.file(path)
        return [
            cell
            for cell, place in (home.places if home is not None else {}).items()
            if not self.names_target(cell)
            and self.state(cell) not in (PLACED if is_test(path) else (Tier.SAFE,))
            and is_fact(self.graph, cell)
            and (place.quoted or self.waits(cell) or self.refuses(cell))
        ]

    def refuses(self, cell: Cell) -> bool:
        """Whether a question for a tensor's device decides that code leaves on any other one."""
        home, place = self.graph.file(cell[1]), self.place(cell)
        if home is None or place is None or not FLAG.match(self.text(cell[1], place)):
            return False
        for guard in home.refusing:
            asked = sources(guard.cells, self.graph.near, CLASS)
            spans = [each[2:] for each in asked if each[:2] == ("value", cell[1])]
            if any(start <= place.start < end for start, end in [(guard.start, guard.end), *spans]):
                return True
        return False

    def waits(self, cell: Cell) -> bool:
        """Whether a call that places a value waits, or stays by a user's word; what the project's
        own methods do with it is not known."""
        home, place = self.graph.file(cell[1]), self.place(cell)
        if home is None or place is None or cell in home.outside:
            return home is not None
        if self.over(cell[1], place.start, place.end):
            return self.state(cell) is Tier.UNSAFE
        return bool(IGNORED.search(line_around(self.graph.texts[cell[1]], place)))

    def state(self, cell: Cell) -> Tier:
        """Whether a text moves, waits for a look or stays."""
        place = self.place(cell)
        numbers = self.over(cell[1], place.start, place.end) if place is not None else []
        tiers = {self.tier(number) for number in numbers}
        if not numbers and place is not None and not place.quoted and not self.refuses(cell):
            return Tier.UNSAFE
        return next((t for t in PLACED if t in tiers), Tier.REPORT)

    def spread(self, cell: Cell, tier: Tier) -> Iterator[Cell]:
        """Hold what a text reaches; gives the texts that stay from now on."""
        place = self.place(cell)
        if place is None:
            return
        words = {"text": self.text(cell[1], place), "path": cell[1], "line": place.line}
        reason = Text(WAITS if tier is Tier.UNSAFE else HELD, **words)
        for other, way, whole in meetings(self.graph, cell, self.names_target):
            there, falls = self.place(other), tier if whole else Tier.UNSAFE
            if is_test(cell[1]) and not is_test(other[1]):
                continue  # what tests keep holds nothing of the program
            if there is None or (falls is Tier.UNSAFE and self.state(other) is not Tier.SAFE):
                continue
            for number in self.over(other[1], there.start, there.end):
                yield from self.hold(number, TierDecision(falls, reason, way))
        if not place.quoted:
            yield from self.hold_guards(cell, tier)
            return
        for name, _ in follow(cell, self.graph.near_values, CLASS):
            if name != cell:  # `args.device if torch.cuda.is_available() else "cpu"`
                yield from self.hold_guards(cell, tier, name)

    def hold(self, number: int, why: TierDecision) -> Iterator[Cell]:
        """Hold a finding with its group and the conditions before it; gives texts that stay."""
        group = self.findings[number].group
        for each in self._groups[group] if group else [number]:
            now = self.tier(each)
            if not self.findings[each].edits or now is Tier.REPORT or now is why.tier:
                continue
            self.held[each] = why
            finding = self.findings[each]
            home = self.graph.file(finding.path)
            met = False
            spans = self.spans(finding) if home is not None else ()
            for cell, first, last in self.texts(finding.path) if spans else ():
                if any(overlaps(first, last, start, end) for start, end in spans):
                    met = True
                    yield cell
                    yield from self.hold_guards(cell, why.tier)
            places = self._places.get(each, ())  # a value's own guards are held above
            self._asked += [(path, e) for path, e in places if e.asked or not met]

    def hold_guards(self, cell: Cell, tier: Tier, name: Cell | None = None) -> Iterator[Cell]:
        """Hold the conditions that a text stands behind, or a name that holds its value."""
        path, place = home_of(name or cell), self.place(cell)
        home = self.graph.file(path)
        if home is None or place is None:
            return
        words = {"text": self.text(cell[1], place), "path": cell[1], "line": place.line}
        reason = Text(GUARDS_WAITING if tier is Tier.UNSAFE else GUARDS, **words)
        for guard in home.guards.get(name or cell, ()):
            behind = self.over(path, guard.first, guard.last) if name else ()
            if any(self.tier(number) is Tier.SAFE for number in behind):
                continue  # the name is translated where it is used
            way = ((cell[1], place.line, "stands behind"), (path, guard.line, "asked"))
            for number in self.asked(path, guard):
                yield from self.hold(number, TierDecision(tier, reason, way))

    def keep(self, path: str, place: StayingPlace) -> Iterator[Cell]:
        """Hold the nearest condition before a place that stays or waits, with what it guards."""
        tier = self.fate(path, place)
        home = self.graph.file(path) if tier is not Tier.SAFE else None
        if home is None:
            return
        forms = (GUARDS_WAITING, BESIDE_WAITING) if tier is Tier.UNSAFE else (GUARDS, BESIDE)
        words = {"text": place.text, "path": path, "line": place.line}
        before, why = (
            TierDecision(tier, Text(form, **words), ((path, place.line, "stands behind"),))
            for form in forms
        )
        if place.asked:
            yield from self.follow_question(path, place, why)
            return
        around = (e for e in home.conditions.values() if e.first <= place.at < e.last)
        for guard in sorted(around, key=lambda each: each.last - each.first):
            moves = any(self.findings[number].edits for number in self.asked(path, guard))
            if self.is_off(path, guard):
                for number in self.over(path, guard.start, guard.end):
                    list(self.hold(number, before))  # it tells nothing about its value
                return
            if moves or any(guard.start <= cell[2] < guard.end for cell in home.questions):
                known = (path, guard.start, guard.end, tier)
                if known in self._closed:
                    return
                self._closed.add(known)
                for number in self.asked(path, guard):
                    yield from self.hold(number, before)
                yield from self.close(path, guard, why)
                for number in self.behind(path, guard) if moves else ():
                    yield from self.hold(number, why)
                return
        inside = (s for s in home.fixtures.values() if s <= place.at < home.functions[s].end)
        for scope in inside:
            yield from self.close_tests(("return", path, scope), why)

    def close_tests(self, given: Cell, why: TierDecision) -> Iterator[Cell]:
        """Hold the tests that take a fixture, by themselves or by another fixture, with marks."""
        taken = [edge.cell for edge in self.graph.takers(given)]
        for _, path, scope, _ in taken:  # grows below
            home = self.graph.file(path)
            if home is None:
                continue
            end = home.functions[scope].end
            found = set(self.over(path, scope, end))
            for guard in home.conditions.values():
                if guard.start < scope and guard.last == end:
                    found |= self.asked(path, guard)
            for number in found:
                yield from self.hold(number, why)
            if scope in home.fixtures.values():
                others = (edge.cell for edge in self.graph.takers(("return", path, scope)))
                taken += [cell for cell in others if cell not in taken]

    def behind(self, path: str, guard: Guard) -> list[int]:
        """Findings in what runs behind a condition, but for values that are translated there."""
        found = self.over(path, guard.first, guard.last)
        return [n for n in found if self.findings[n].group and not is_translated(self.findings[n])]

    def fate(self, path: str, place: StayingPlace) -> Tier:
        """Whether a place moves, waits for a look or stays; a test's own wait holds nothing."""
        numbers = self.over(path, place.start, place.end)
        if any(is_waiting(self.findings[number]) for number in numbers if number not in self.held):
            return Tier.SAFE
        tiers = {self.tier(number) for number in numbers}
        return next((each for each in PLACED if each in tiers), Tier.REPORT)

    def is_off(self, path: str, guard: Guard) -> bool:
        """Whether a condition is a comparison with a text, and what it is before may be off."""
        home = self.graph.file(path)
        compares = home is not None and home.questions.get(guard.cell) == COMPARISON  # type: ignore[arg-type]
        return compares and may_be_off(self.graph.texts[path], guard)

    def close(self, path: str, guard: Guard, why: TierDecision) -> Iterator[Cell]:
        """Hold what runs behind the answers of a condition and of the questions that answer it."""
        spans = {(path, guard.start, guard.end)}
        spans |= {c[1:] for c in sources(guard.cells, self.graph.near, CLASS) if c[0] == "value"}
        for where, start, end in spans:
            yield from self.answer(where, start, end, why)

    def follow_question(self, path: str, place: StayingPlace, why: TierDecision) -> Iterator[Cell]:
        """Hold what runs behind a question that stays or waits, as it is or by a variable."""
        home = self.graph.file(path)
        guards = home.conditions.values() if home is not None else ()
        own = [each for each in guards if each.start <= place.start < each.end]
        if any(may_be_off(self.graph.texts[path], guard) for guard in own):
            return
        for guard in own:
            for number in () if guard.denied else self.behind(path, guard):
                yield from self.hold(number, why)
        yield from self.answer(path, place.at, place.asked, why, place.start)

    def answer(
        self, path: str, start: int, end: int, why: TierDecision, at: int = -1
    ) -> Iterator[Cell]:
        """Hold what runs behind the answer of a question that stays: nothing does on the target.

        `at` is a place of it: what holds its value is followed as well.
        """
        home = self.graph.file(path)
        if home is None:
            return
        answers = {c for c in home.questions if start <= c[2] < end}
        answers |= {
            c for c in home.edges
            if c[0] == "value" and start <= c[2] <= at < c[3] <= end
        }  # fmt: skip
        for cell in answers:
            for reached, _ in follow(cell, self.graph.near, ANSWERS):
                where = home_of(reached)
                other = self.graph.file(where)
                for guard in other.asking.get(reached, ()) if other is not None else ():
                    if where == path and guard.start <= at < guard.end:
                        continue
                    found = self.behind(where, guard)
                    if at < 0:
                        found = [
                            *self.asked(where, guard), *self.over(where, guard.first, guard.last)
                        ]  # fmt: skip
                    for number in found:
                        yield from self.hold(number, why)

    def asked(self, path: str, guard: Guard) -> set[int]:
        """Findings in a condition, and in what gives its variables their answers."""
        found = set(self.over(path, guard.start, guard.end))
        for each in sources(guard.cells, self.graph.near, CLASS):
            if each[0] == "value":
                found |= set(self.over(each[1], each[2], each[3]))
        return found


def is_translated(finding: Finding) -> bool:
    """Whether a value stays as it is and is translated where torch is given it: right behind any
    condition, as the value is the origin's word on every machine."""
    inserted = all(edit.start == edit.end for edit in finding.edits)
    return finding.rule == "JM121" and bool(finding.edits) and inserted


def hold(
    findings: list[Finding],
    graph: ValueGraph,
    vocabulary: Vocabulary,
    staying: Iterable[tuple[str, StayingPlace]] = (),
    *,
    by_shim: bool = False,
) -> dict[int, TierDecision]:
    """What is held, by the number of its finding. `graph` holds the project as it stands.

    `staying` are places that are no value, each with its file. Under the vendor's shim (`by_shim`)
    texts keep the origin's words, and hold nothing.
    """
    if not any(each.edits and each.path in graph.texts for each in findings):
        return {}
    solver = Solver(graph, findings, target_words(vocabulary))
    paths = [] if by_shim else files_naming(graph.texts, vocabulary, solver.moves)
    return solver.solve(paths, staying)


def files_naming(
    texts: Mapping[str, str],
    vocabulary: Vocabulary,
    moved: Callable[[str, int], bool] = lambda path, at: False,
) -> list[str]:
    """Files with a text that names the origin's device or backend and stays, as far as a search
    can tell; `moved` says of an offset whether an edit covers it."""
    device, backend = re.escape(vocabulary.device), re.escape(vocabulary.backend)
    named = re.compile(
        rf"[\"'](?:\w+:\w+,)*(?:{device}|{backend})[\"':{{%]|[._]{device}\(|\.is_{device}\b"
    )
    found = list(filter(is_settings, texts))
    for path, text in texts.items():
        if is_settings(path) or (device not in text and backend not in text):
            continue
        places = (m.start() for m in named.finditer(text) if not in_comment(text, m.start()))
        if any(not moved(path, at) for at in places):
            found.append(path)
    return found


def in_comment(text: str, at: int) -> bool:
    """Whether the line of an offset is a comment."""
    return text[text.rfind("\n", 0, at) + 1 : at].lstrip()[:1] == "#"


def target_words(vocabulary: Vocabulary) -> re.Pattern[str]:
    """The target's words in a text."""
    return re.compile(
        rf"\b(?:is_)?(?:{re.escape(vocabulary.to_device)}|{re.escape(vocabulary.to_backend)})\b"
    )


def meetings(
    graph: ValueGraph,
    cell: Cell,
    names_target: Callable[[Cell], bool],
    stood_there: Callable[[Cell], bool] | None = None,
) -> Iterator[tuple[Cell, Way, bool]]:
    """Texts in other statements that a text meets, each with the lines that lead there, and whether
    its class is known as a whole.

    None where both devices are told apart on purpose: in a list of choices, or, by a text that
    `stood_there` before a rewrite, in the branches of one `if` or in another question for the same
    value.
    """
    place, home = place_of(graph, cell), graph.file(cell[1])
    if place is None or home is None:
        return
    stood_there = stood_there or names_target
    for other, there in home.places.items():
        if there.statement == place.statement and names_target(other):
            return
        if place.chain and there.chain == place.chain and stood_there(other):
            return
    if any(map(stood_there, asked_beside(graph, cell))):
        return
    met: set[Cell] = set()
    for near in (graph.near_values, graph.near):  # the devices of tensors make a class larger
        graph.allowance = READ
        found = grow(cell, near, CLASS)
        whole = len(found) < CLASS and graph.allowance >= 0
        graph.allowance = sys.maxsize
        graph.forget_partial()
        if not whole and near == graph.near_values:
            found = grow(cell, near, ANSWERS)
        for other, passed in found:
            there_ = place_of(graph, other) if passed and other not in (cell, *met) else None
            if there_ and (other[1], there_.statement) != (cell[1], place.statement):
                met.add(other)
                yield other, tell(found, other), whole
        if not whole:
            return


def asked_beside(graph: ValueGraph, cell: Cell) -> Iterator[Cell]:
    """Texts that the value which a text is compared with is compared with as well."""
    asked = (edge.cell for edge in graph.near(cell, GOES) if edge.kind == COMPARED)
    beside = (edge for one in asked for edge in graph.near(one, GOES) if edge.kind == COMPARED)
    return (edge.cell for edge in beside if edge.cell[0] == "text" and edge.cell != cell)


def is_turned_off(graph: ValueGraph, cell: Cell, place: TextPlace) -> bool:
    """Whether what a text decides may be off on the target: it is no fact about the value.

    Compared in one line with a question for the card that has no answer there:
    `device.type == "cuda" and torch.cuda.get_device_capability() >= (8, 0)`, or before lines that
    do no more than set numeric switches of the origin's libraries and tell people something.
    """
    text, home = graph.texts[cell[1]], graph.file(cell[1])
    if QUESTION.search(line_around(text, place)):
        return True
    guards = home.conditions.values() if home is not None else ()
    asking = [each for each in guards if each.start <= place.start < each.end]
    chosen = IGNORED.search(line_around(text, place))
    return bool(asking) and not chosen and all(may_be_off(text, each) for each in asking)


def may_be_off(text: str, guard: Guard) -> bool:
    """Whether what runs behind a condition of a file's text is nothing without the origin."""
    behind = text[guard.first : guard.last]
    return bool(ORIGINS.search(behind) and HARMLESS.fullmatch(behind))


def is_fact(graph: ValueGraph, cell: Cell) -> bool:
    """Whether a text that stays tells anything about its value."""
    home, place = graph.file(cell[1]), place_of(graph, cell)
    if home is None or place is None or is_turned_off(graph, cell, place):
        return False
    dotted = home.outside.get(cell, "")
    names = {dotted, dotted.partition(".")[0]} - {""}
    return all(graph.tree.locate(cell[1], name) is None for name in names)


def line_around(text: str, place: TextPlace) -> str:
    """The lines that a place stands in."""
    end = text.find("\n", place.end)
    return text[text.rfind("\n", 0, place.start) + 1 : end if end >= 0 else len(text)]


def place_of(graph: ValueGraph, cell: Cell) -> TextPlace | None:
    """The place of a text."""
    home = graph.file(cell[1]) if cell[0] == "text" else None
    return home.places.get(cell) if home is not None else None


def overlaps(start: int, end: int, first: int, last: int) -> bool:
    """Whether two spans share a byte."""
    return start < last and first < end


def tell(found: dict[State, growth.Way], cell: Cell) -> Way:
    """The lines that lead from where a growth started to a cell."""
    return tuple(
        (edge.path or home_of(edge.cell) or home_of(before), edge.line, edge.kind)
        for before, edge in way_to((cell, True), found)
        if edge.kind not in SILENT
    )


def ways_of(findings: list[Finding], held: Mapping[int, TierDecision]) -> dict[Site, Way]:
    """The way of each decision that has one, by the place of its finding."""
    sites = ((findings[number], each.way) for number, each in held.items() if each.way)
    return {(one.path, one.line, one.column): way for one, way in sites}


def apply_decisions(findings: Iterable[Finding], held: Mapping[int, TierDecision]) -> list[Finding]:
    """The findings with those that are held as what they fall to."""
    done = []
    for number, each in enumerate(findings):
        why = held.get(number)
        if why is not None:
            each = (each.doubt if why.tier is Tier.UNSAFE else each.leave)(why.reason)
        done.append(each)
    return done
