"""What known calls do with values, as data.

A rule is `=X` (the result is X) or some of `A<B` (A gets the value of B) and `A~B` (both are
compared), with `r` the receiver, `=` the result, `0` `1` the arguments, a word a keyword, `.name` a
field, `.?0` the field that argument 0 names.
"""

from __future__ import annotations

TEXTS = frozenset(
    ("str", "list", "tuple", "set", "frozenset", "sorted", "reversed", "iter", "next")
)
CALLS: dict[str, str] = {
    **dict.fromkeys(TEXTS, "=0"),
    **dict.fromkeys(
        ("torch.device", "copy.copy", "copy.deepcopy", "re.compile", "click.Choice", "dict",
         "omegaconf.OmegaConf.create"), "=0",
    ),
    **dict.fromkeys(("re.match", "re.search", "re.fullmatch"), "0~1"),
    **dict.fromkeys(("bool", "int"), "=0"),
    **dict.fromkeys(("any", "all", "max", "min", "sum"), "=<0.[]"),
    "typing.cast": "=1",
    "filter": "=1",
    "getattr": "=<0.?1 =<2",
    "setattr": "0.?1<2",
    "os.getenv": "=<1",
    "enumerate": "=.[].1<0.[]",
    "zip": "=.[].0<0.[] =.[].1<1.[]",
    "dataclasses.field": "=default",
    "pydantic.Field": "=<0 =<default",
    "typer.Option": "=<0 =<default",
    "typer.Argument": "=<0 =<default",
}  # fmt: skip
METHODS: dict[str, str] = {
    **dict.fromkeys(
        ("lower", "strip", "upper", "rstrip", "lstrip", "format", "copy", "split", "rsplit",
         "partition", "rpartition"), "=r",
    ),
    **dict.fromkeys(("startswith", "endswith", "find", "count", "index"), "r~0"),
    **dict.fromkeys(("replace", "removeprefix", "removesuffix"), "r~0 =<r"),
    **dict.fromkeys(("get", "pop", "setdefault"), "=<r.?0 =<1"),
    **dict.fromkeys(("append", "add"), "r.[]<0"),
    "extend": "r<0",
    "values": "=.[]<r.[]",
    "keys": "=.[]<r.{}",
    **dict.fromkeys(("parameters", "buffers"), "=.device<r.device =.[].device<r.device"),
    "items": "=.[].0<r.{} =.[].1<r.[]",
}  # fmt: skip
