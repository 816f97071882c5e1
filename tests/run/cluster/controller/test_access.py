"""Tokens, roles and the audit log.

What could go wrong: the first user locks everybody out; a request without a token, with that of a
removed user, or with a borrowed name is served; a user stops a job of another, or all of an array;
a viewer changes something; a private method can be asked; a token or its digest can be read; a
refused request leaves no line; a restart forgets the users; no admin is left.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster.bookings import Booking
from joymigrate.run.cluster.controller import access
from joymigrate.run.cluster.controller.ledger import Fact, Ledger
from joymigrate.run.cluster.controller.orders import VERBS, Order
from joymigrate.run.cluster.controller.reports import read_audit, read_history
from joymigrate.run.cluster.controller.store import Store
from joymigrate.run.cluster.jobs import PodAllocation
from tests.run.cluster.cases import job, nodes, queue
from tests.run.cluster.controller.test_restore import Book


def company() -> tuple[Book, dict[str, str]]:
    """A cluster with one user of each role; `ann` (user) has job `a`, `bob` (user) has `b`."""
    book = Book(nodes("[{name: n, kind: gpu-8}]"), [queue("q"), queue("r")])
    tokens = {}
    for name, role, queues in (
        ("root", "admin", ()), ("op", "operator", ()), ("ann", "user", ("q",)),
        ("bob", "user", ()), ("eve", "viewer", ()),
    ):  # fmt: skip
        user, tokens[name] = access.new_user(book.ledger, name, role, queues)
        data = {"name": user.name, "role": role, "digest": user.digest, "queues": list(queues)}
        book.write(Fact("user_added", 0.0, data={"user": data}))
    book.submit(job("a", queue="q"), 0.0)
    book.submit(job("b", queue="q"), 0.0)
    book.ledger.records["a"].by, book.ledger.records["b"].by = "ann", "bob"
    return book, tokens


def may(ledger: Ledger, token: str, method: str, *arguments: Any) -> bool:
    try:
        caller = access.find_caller(ledger, token, "root")
        access.grant(ledger, caller, method, arguments)
    except JoyError:
        return False
    return True


def order(verb: str, **more: Any) -> Order:
    return Order(verb, "root", 0.0, **more)


@pytest.mark.parametrize(
    ("method", "arguments", "who"),
    [
        ("status", (), "root op ann bob eve"),
        ("logs", ("a", 5), "root op ann"),
        ("read", ("a", 0, 0, 9), "root op ann"),
        ("submit", ([job("x", queue="q")],), "root op ann bob"),
        ("submit", ([job("x", queue="r")],), "root op bob"),
        ("cancel", ("a",), "root op ann"),
        ("cancel", ("unknown",), "root op ann bob"),
        ("execute", ("a", 0, ["ls"], 5.0), "root op ann"),
        ("order", (order("hold", job="a"),), "root op ann"),
        ("order", (order("drain", node="n"),), "root op"),
        ("order", (order("reserve"),), "root op"),
        ("set_quotas", (None,), "root"),
        ("add_user", ("x", "user", ()), "root"),
        ("audit", (5,), "root"),
        ("_write", ([],), ""),
        ("__init__", (), ""),
    ],
)
def test_each_role_may_do_what_it_should(method: str, arguments: Any, who: str) -> None:
    book, tokens = company()
    found = [name for name, token in tokens.items() if may(book.ledger, token, method, *arguments)]
    assert found == who.split()
    assert not may(book.ledger, "", method, *arguments)
    assert not may(book.ledger, "wrong", method, *arguments)


def test_every_method_and_every_verb_has_a_rule() -> None:
    pytest.importorskip("ray")
    from joymigrate.run.cluster.on_ray.guarded import GuardedController

    asked = {
        name
        for name, found in inspect.getmembers(GuardedController, inspect.iscoroutinefunction)
        if not name.startswith("_") and name != "call"
    }
    assert asked == {*access.RULES}
    for name, rule in access.RULES.items():
        names = list(inspect.signature(getattr(GuardedController, name)).parameters)[1:]
        assert rule.by is None or names[rule.by] == "by", name
        assert rule.job is None or names[rule.job] in ("name", "job"), name
    assert {*access.OWN} <= {*VERBS}


def test_a_borrowed_name_does_not_count() -> None:
    book, tokens = company()
    caller = access.find_caller(book.ledger, tokens["ann"], "root")
    given, about = access.grant(book.ledger, caller, "order", (order("hold", job="a"),))
    assert (given[0].by, about) == ("ann", "hold a")
    given, _ = access.grant(book.ledger, caller, "submit", ([job("x", queue="q")], "root"))
    assert given[1] == "ann"


def test_of_an_array_all_members_must_be_theirs() -> None:
    book, tokens = company()
    for number, by in enumerate(("ann", "bob")):
        member = dataclasses.replace(job(f"x-{number}", queue="q"), array="x")
        book.submit(member, 1.0)
        book.ledger.records[member.name].by = by
    assert may(book.ledger, tokens["ann"], "cancel", "x-0")
    assert not may(book.ledger, tokens["ann"], "cancel", "x")
    assert may(book.ledger, tokens["op"], "cancel", "x")


def test_without_users_all_is_open_and_the_first_must_be_an_admin() -> None:
    ledger = Ledger()
    assert access.find_caller(ledger, "", "me") == access.Caller("me")
    given, _ = access.grant(ledger, access.Caller("me"), "submit", ([], "stated"))
    assert given[1] == "stated"
    with pytest.raises(JoyError, match="first user must be an admin"):
        access.new_user(ledger, "ann", "user", ())
    book, _ = company()
    for name, role, queues, says in (
        ("ann", "user", (), "is there"), (" ", "user", (), "needs a name"),
        ("x", "usr", (), "Did you mean 'user'"), ("x", "user", ("z",), "no queue 'z'"),
    ):  # fmt: skip
        with pytest.raises(JoyError, match=says):
            access.new_user(book.ledger, name, role, queues)


def test_the_last_admin_stays() -> None:
    book, _ = company()
    with pytest.raises(JoyError, match="last admin"):
        access.check_removal(book.ledger, "root")
    with pytest.raises(JoyError, match="no user 'bo'"):
        access.check_removal(book.ledger, "bo")
    for name in ("op", "ann", "bob", "eve"):
        access.check_removal(book.ledger, name)
        book.write(Fact("user_removed", 1.0, data={"name": name}))
    access.check_removal(book.ledger, "root")


def test_users_and_windows_outlive_a_restart_and_no_digest_is_shown(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ledger = store.load()
    user, token = access.new_user(ledger, "root", "admin", ())
    data = {"name": "root", "role": "admin", "digest": user.digest, "queues": ["q"]}
    booking = {"name": "w", "begin": 1.0, "end": 9.0, "cards": [{"node": "n", "cards": [0]}]}
    store.append(
        [
            Fact("user_added", 0.0, "", "root", {"user": data}),
            Fact("reserved", 0.5, "", "root", {"booking": booking}),
            access.audit("ann", "order", "drain n", "refused: no", 2.0),
        ],
        ledger,
    )
    store.snapshot(ledger)
    assert user.digest not in json.dumps(read_history(tmp_path))
    assert [one["kind"] for one in read_history(tmp_path)] == ["user_added", "reserved"]
    assert read_audit(tmp_path, 5)[0]["outcome"] == "refused: no"
    store.close()
    again = Store(tmp_path)
    after = again.load()
    again.close()
    assert access.find_caller(after, token, "").queues == ("q",)
    assert after.bookings == {"w": Booking("w", (PodAllocation("n", (0,)),), 1.0, 9.0)}
    assert token not in (tmp_path / "cluster.db").read_bytes().decode("latin-1")


def test_an_owner_does_not_undo_what_an_operator_holds() -> None:
    book, tokens = company()
    for by, allowed in (("op", False), ("ann", True)):
        book.write(Fact("held", 1.0, "a", by))
        assert may(book.ledger, tokens["ann"], "order", order("release", job="a")) is allowed
        assert may(book.ledger, tokens["op"], "order", order("release", job="a"))


def test_blanks_around_a_name_make_no_other_user() -> None:
    book, _ = company()
    with pytest.raises(JoyError, match="'ann' is there"):
        access.new_user(book.ledger, " ann ", "user", ())
