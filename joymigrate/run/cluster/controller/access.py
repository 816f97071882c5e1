"""Who may ask the controller for what: users with tokens and roles, and the line in the audit log.

Without users everybody may do everything, under the name that the command line says. From the first
user on, each request needs a token, and its name is the token's. Whoever reaches Ray can run code
beside the controller: tokens guard against mistakes and borrowed names, not against such a person.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.cluster.controller.ledger import Fact, Ledger, User
from joymigrate.run.cluster.controller.orders import Order
from joymigrate.run.cluster.jobs import DEFAULT_QUEUE

ROLES = ("viewer", "user", "operator", "admin")  # each may do what those before it may
TOKEN_BYTES = 32
OWN = ("hold", "release", "requeue", "priority")  # orders about a job, which its owner may give
BAD_TOKEN = "your token is unknown on this cluster, or there is none"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the token's user, or the name that a command line says where there are no users."""

    name: str
    role: str = "admin"
    queues: tuple[str, ...] = ()  # those that it may submit to; (): all


@dataclass(frozen=True, slots=True)
class AccessRule:
    """The least role for a method, the argument that names its job, and the one for who asks.

    With `own` a user may ask it about their own jobs; about those of others it takes an operator.
    `quiet` requests stand in the audit log only when they are refused.
    """

    role: str
    job: int | None = None
    by: int | None = None
    own: bool = False
    quiet: bool = False


RULES: Mapping[str, AccessRule] = {
    "status": AccessRule("viewer", quiet=True),
    "board": AccessRule("viewer", quiet=True),
    "explain": AccessRule("viewer", 0, quiet=True),
    "quota": AccessRule("viewer", quiet=True),
    "compare_quotas": AccessRule("viewer", quiet=True),
    "reservations": AccessRule("viewer", quiet=True),
    "history": AccessRule("viewer", 0, quiet=True),
    "usage": AccessRule("viewer", quiet=True),
    "shares": AccessRule("viewer", quiet=True),
    "read": AccessRule("user", 0, own=True, quiet=True),
    "logs": AccessRule("user", 0, own=True, quiet=True),
    "submit": AccessRule("user", by=1),
    "cancel": AccessRule("user", 0, by=1, own=True),
    "execute": AccessRule("user", 0, by=4, own=True),
    "order": AccessRule("user"),
    "set_quotas": AccessRule("admin", by=1),
    "add_user": AccessRule("admin", by=3),
    "remove_user": AccessRule("admin", by=1),
    "users": AccessRule("admin", quiet=True),
    "audit": AccessRule("admin", quiet=True),
}


def find_caller(ledger: Ledger, token: str, said: str) -> Caller:
    """The user of a token; `JoyError` where users are known and the token is none of theirs."""
    if not ledger.users:
        return Caller(said)
    digest = digest_of(token)
    for user in ledger.users.values():
        if hmac.compare_digest(user.digest, digest):
            return Caller(user.name, user.role, user.queues)
    raise JoyError(BAD_TOKEN, help="set JOYMIGRATE_TOKEN; `cluster users add` makes one")


def grant(
    ledger: Ledger, caller: Caller, method: str, arguments: Sequence[Any]
) -> tuple[list[Any], str]:
    """The arguments with the caller's name in its place, and what the request is about.

    `JoyError` where the caller may not ask that.
    """
    if method not in RULES:
        raise JoyError(f"the controller answers no '{method}'.{did_you_mean(method, RULES)}")
    rule, given = RULES[method], list(arguments)
    need, own, about = rule.role, rule.own, ""
    if rule.job is not None and len(given) > rule.job:
        about = str(given[rule.job])
    if method == "order":
        order = given[0]
        if not isinstance(order, Order):
            raise JoyError("this is no order")
        own = order.verb in OWN
        need = "user" if own else "operator"
        window = order.window.name if order.window else ""
        about = " ".join([order.verb, order.job or order.node or window])
        by = caller.name if ledger.users else order.by or caller.name
        given[0] = dataclasses.replace(order, by=by)
        job = order.job
    else:
        job = about
    if method == "submit":
        about = ", ".join(one.name for one in given[0])
        check_queues(caller, given[0])
    if rule.by is not None:
        while len(given) <= rule.by:
            given.append("")
        given[rule.by] = caller.name if ledger.users else given[rule.by] or caller.name
    if own and ROLES.index(caller.role) < ROLES.index("operator") and not owns(ledger, caller, job):
        raise JoyError(
            f"{caller.name} is {caller.role}: jobs of others are an operator's",
            help=f"job '{job}' is not yours",
        )
    if method == "order" and order.verb == "release" and caller.role == "user":
        check_release(ledger, caller, job)
    if ROLES.index(caller.role) < ROLES.index(need):
        raise JoyError(
            f"{caller.name} is {caller.role}: this takes the role {need}",
            help="an admin gives roles with `cluster users add`",
        )
    return given, about


def owns(ledger: Ledger, caller: Caller, job: str) -> bool:
    """Whether all jobs of this name are the caller's; an unknown name is nobody's secret."""
    records = ledger.records.get(job)
    members = [records] if records else [r for r in ledger.records.values() if r.job.array == job]
    return all(record.by == caller.name for record in members)


def check_release(ledger: Ledger, caller: Caller, job: str) -> None:
    """Refuse a job's owner what somebody else's hold keeps from starting, as Slurm does."""
    members = [r for r in ledger.records.values() if job in (r.job.name, r.job.array)]
    for record in members:
        if record.state == "held" and record.held_by != caller.name:
            raise JoyError(
                f"job '{record.job.name}' is held by {record.held_by}, not by you",
                help="an operator releases it",
            )


def check_queues(caller: Caller, jobs: Sequence[Any]) -> None:
    """Refuse jobs for a queue that the caller may not use."""
    for job in jobs:
        if caller.queues and job.queue not in caller.queues:
            raise JoyError(
                f"{caller.name} may not submit to queue '{job.queue}' (job {job.name})",
                help=f"queues of {caller.name}: {', '.join(caller.queues)}",
            )


def audit(by: str, method: str, about: str, outcome: str, at: float) -> Fact:
    """The line of one request in the log: done, refused, or failed, and why."""
    data = {"request": method, "about": about[:200], "outcome": outcome[:300]}
    return Fact("audit", at, "", by, data)


def digest_of(token: str) -> str:
    """What the log keeps of a token. It has 256 random bits, so one round of SHA-256 will do."""
    return hashlib.sha256(token.strip().encode()).hexdigest()


def new_user(
    ledger: Ledger,
    name: str,
    role: str,
    queues: Sequence[str],
    make: Callable[[], str] = lambda: secrets.token_urlsafe(TOKEN_BYTES),
) -> tuple[User, str]:
    """A user and their token, which nobody can read again; `JoyError` for what cannot be."""
    name = name.strip()
    if role not in ROLES:
        raise JoyError(f"no role '{role}'.{did_you_mean(role, ROLES)}", help=", ".join(ROLES))
    if not name or name in ledger.users:
        taken = f"a user called '{name}' is there" if name else "a user needs a name"
        raise JoyError(taken, help="`cluster users remove` takes a token back")
    if not ledger.users and role != "admin":
        raise JoyError(
            "the first user must be an admin", help="from then on every request needs a token"
        )
    declared = {queue.name for queue in ledger.queues}
    for queue in queues:
        if declared and queue not in {*declared, DEFAULT_QUEUE}:
            raise JoyError(f"this cluster has no queue '{queue}'.{did_you_mean(queue, declared)}")
    token = make()
    return User(name, role, digest_of(token), tuple(queues)), token


def check_removal(ledger: Ledger, name: str) -> None:
    """Refuse to remove nobody, or the last admin while there are others."""
    if name not in ledger.users:
        raise JoyError(f"no user '{name}'.{did_you_mean(name, ledger.users)}")
    admins = [user.name for user in ledger.users.values() if user.role == "admin"]
    if admins == [name] and len(ledger.users) > 1:
        raise JoyError(
            f"{name} is the last admin", help="remove the others first, or make another admin"
        )
