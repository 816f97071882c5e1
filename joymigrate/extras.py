"""Packages that only some commands need: which extra brings one, and what to say without it."""

from __future__ import annotations

import importlib.util

from joymigrate.errors import JoyError

OURS = ("dev", "docs")  # extras for those who build joymigrate itself
# Import names that are not the distribution's name with underscores.
DISTRIBUTIONS = {"PIL": "pillow", "google": "protobuf"}


def need(extra: str, *modules: str, what: str) -> None:
    """Raise `JoyError` that names `extra` when one of its `modules` is not installed."""
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        raise JoyError(f"{what} needs {', '.join(absent)}", help=install(extra))


def install(*extras: str) -> str:
    """The command that installs one of `extras`; empty for none."""
    return ", or ".join(f"pip install 'joymigrate[{extra}]'" for extra in extras)


def how_to_get(package: str) -> str:
    """The command that brings a package: by the extra that has it, else by its own name."""
    return install(*extras_of(package)) or f"pip install {package}"


def extras_of(module: str) -> list[str]:
    """The extras that bring the package `module` is imported from; none for other packages.

    An extra that has everything of another one and more is left out: whoever lacks torch needs
    `torch`, not what training needs.
    """
    wanted = distribution(module)
    brings = {extra: names for extra, names in read_extras().items() if wanted in names}
    return [
        extra
        for extra, names in brings.items()
        if not any(other < names for other in brings.values())
    ]


def read_extras() -> dict[str, set[str]]:
    """The distributions that each extra for users brings, from joymigrate's own metadata."""
    from importlib import metadata

    found: dict[str, set[str]] = {}
    for line in metadata.requires("joymigrate") or []:
        name, _, marker = line.partition(";")
        extra = marker.rpartition("extra == ")[2].strip(" '\"()")
        if extra and extra not in OURS:
            found.setdefault(extra, set()).add(canonical(name))
    return found


def distribution(module: str) -> str:
    """The distribution that a module comes from, by its import name."""
    top = module.partition(".")[0]
    return canonical(DISTRIBUTIONS.get(top, top))


def canonical(requirement: str) -> str:
    """`Kubernetes_Validate>=1.30` as `kubernetes-validate`."""
    name = requirement.strip()
    for sign in "<>=!~[ ":
        name = name.partition(sign)[0]
    return name.lower().replace("_", "-").replace(".", "-")


def absent(error: ImportError) -> JoyError | None:
    """What to tell a user when an import failed for want of an extra; None for any other reason."""
    if error.name is None or importlib.util.find_spec(error.name.partition(".")[0]) is not None:
        return None
    extras = extras_of(error.name)
    if not extras:
        return None
    return JoyError(f"this needs {distribution(error.name)}", help=install(*extras))
