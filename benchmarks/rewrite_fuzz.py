"""Mutate real Python files and rewrite them: nothing may crash, break or change outside the edits.

    python -m benchmarks.rewrite_fuzz FOLDER --count 1000 [--seed 1] [--style agnostic] [--bytes N]

Every case takes a file of FOLDER that names the origin and changes it: spaces around keywords go
where strings stand beside them, line ends become CRLF or CR, indents become tabs, a form feed, a
coding cookie (with bytes of that encoding) or a byte order mark comes in front, lines are dropped,
doubled or joined, and code for the origin in the syntax of Python 3.8 to 3.14 comes between them.
What no longer parses still must not crash. Counted: crashes, outputs that don't parse, bytes
outside the edits that differ, and outputs that a second rewrite changes again. `--bytes` takes
files up to that size: small files give many more cases a minute.
"""

from __future__ import annotations

import argparse
import ast
import gc
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from joymigrate import chips
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import python
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.proof import Devices, prove
from joymigrate.rewrite.source import Unreadable, decode

Mutation = Callable[[bytes, random.Random], bytes]


def lines_changed(data: bytes, rng: random.Random) -> bytes:
    """One line dropped or doubled."""
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    lines[at] = rng.choice((b"", lines[at] * 2))
    return b"".join(lines)


# Code for the origin in younger and rarer forms of the language.
SNIPPETS = """\
if(n:=torch.cuda.device_count())>1:pass
def f(a,/,b="cuda",*,c=torch.device("cuda:0")):return a.to(b,non_blocking=True)
match device:
    case"cuda"|"cuda:0":x=torch.zeros(1,device="cuda")
    case _:pass
with(torch.cuda.stream(s),torch.autocast("cuda")):pass
try:torch.cuda.synchronize()
except*RuntimeError:pass
type Where=str
def g[T](x:T,w="cuda")->T:return x.to(w)
v=f"{f"{torch.cuda.device_count()}"}:{"cuda"}"
v=t"{torch.cuda.device_count()}"
x=1if torch.cuda.is_available()else 0
d="cuda"if torch.cuda.is_available()else"cpu"
x=[i.cuda()for i in(a,b)if"cuda"in str(i.device)]
y=lambda z:z.cuda()if z.is_cuda else z
assert"cuda"==device.type,"no cuda"
torch.cuda.set_device(0);torch.cuda.empty_cache()
z=torch.\\\n    cuda.is_available()
w=x.to("cu" "da");w=x.to(r"cuda:0");w=x.to(f"cuda:{i}")
async def h():return[await q.cuda()async for q in r]
from torch.cuda import*
from torch.cuda import(amp,Stream as S,)
import torch.cuda.amp as amp,os
@torch.cuda.amp.custom_fwd(cast_inputs=torch.float16)
def k():pass
global_=[*torch.cuda.get_arch_list(),*()];print(*global_,sep="cuda")
del os.environ["CUDA_VISIBLE_DEVICES"]
os.environ["CUDA_VISIBLE_DEVICES"]:str="0"
torch.cuda.x:int=1
for i in*a,*b:torch.cuda.device(i).__enter__()
print(f"{'cuda'!r:>{torch.cuda.device_count()}} {torch.cuda.is_available()=}")
dist.init_process_group("nccl",timeout=t)if dist.is_nccl_available()else None
""".replace("\\n    cuda", "\n    cuda")
BLOCKS = re.findall(r"^\S.*\n(?:[ ].*\n|except.*\n)*", SNIPPETS, re.M)
COOKIES = {
    "latin-1": "\xe9\xfc",
    "cp1252": "\u20ac",
    "gbk": "\u4e2d\u6587",
    "shift_jis": "\u65e5\u672c",
}


def snippet(data: bytes, rng: random.Random) -> bytes:
    """Code for the origin between two lines that begin in the first column."""
    lines = data.splitlines(keepends=True)
    places = [n for n, line in enumerate(lines) if line[:1].isalpha()] or [0]
    block = "".join(rng.sample(BLOCKS, rng.randint(1, 3)))
    lines.insert(rng.choice(places), block.encode())
    return b"".join(lines)


def cookie(data: bytes, rng: random.Random) -> bytes:
    """Another encoding, declared, with a comment that needs it."""
    name = rng.choice(sorted(COOKIES))
    head = f"# -*- coding: {name} -*-\n# {COOKIES[name]}\n".encode(name)
    return head + bytes(byte for byte in data if byte < 128)


def joined(data: bytes, rng: random.Random) -> bytes:
    """Two lines at the first column in one, with a semicolon."""
    starts = [m.start() for m in re.finditer(rb"\n(?=[a-z_]+[.(\[= ])", data)]
    if not starts:
        return data
    at = rng.choice(starts)
    return data[:at] + b";" + data[at + 1 :]


MUTATIONS: dict[str, Mutation] = {
    "no spaces": lambda data, _: re.sub(rb" (if|else|in|and|or|is) ?(?=[\"'(\[])", rb" \1", data),
    "tight strings": lambda data, _: re.sub(rb"([\"')\]]) (if|else|in|and|or) ", rb"\1\2 ", data),
    "crlf": lambda data, _: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "form feed": lambda data, _: b"\f" + data,
    "cookie": cookie,
    "cr": lambda data, _: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r"),
    "tabs": lambda data, _: re.sub(rb"(?m)^(?:    )+", lambda m: b"\t" * (len(m[0]) // 4), data),
    "snippet": snippet,
    "joined": joined,
    "no spaces at all": lambda data, _: re.sub(
        rb" (==|!=|=|\+|,|in|if|else|not in) (?=[\"'(\[])", rb"\1", data
    ),
    "mark": lambda data, _: b"\xef\xbb\xbf" + data,
    "lines": lines_changed,
    "no last newline": lambda data, _: data.rstrip(b"\n"),
}


def parses(data: bytes) -> bool:
    """Whether bytes are Python."""
    try:
        ast.parse(data)
    except (SyntaxError, ValueError):
        return False
    return True


def outside_kept(before: bytes, after: bytes, findings: tuple[Finding, ...]) -> bool:
    """Whether what stands between the edits stands in the result, in order and byte for byte."""
    edits = sorted({e for f in findings for e in f.edits}, key=lambda e: (e.start, e.end))
    at = position = 0
    for edit in edits:
        between = before[at : edit.start]
        if after[position : position + len(between)] != between:
            return False
        position += len(between) + len(edit.text)
        at = edit.end
    return after[position:] == before[at:]


def changed_again(data: bytes, context: Context, devices: Devices) -> bool:
    """Whether a second rewrite would change an output."""
    try:
        found = python.findings(decode("a.py", data, python=True), context)
    except Unreadable:
        return False
    again = [f for f in found if f.tier is Tier.SAFE and f.edits]
    return prove("a.py", data, again, devices).content != data


def main() -> None:
    """Run the cases and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--style", default="agnostic")
    parser.add_argument("--bytes", type=int, default=1 << 30)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = random.Random(options.seed)
    style = Style(options.style)
    origin, target = chips.origin(), chips.target(None)
    context = Context.between(target, origin, style)
    devices = Devices(origin.device, target.device, style is Style.AGNOSTIC)
    small = (p for p in sorted(options.folder.rglob("*.py")) if p.stat().st_size <= options.bytes)
    files = {p: data for p in small if b"cuda" in (data := p.read_bytes())}
    paths = list(files)
    told: Counter[str] = Counter()
    gc.disable()  # syntax trees leave no circles behind; see `project.searches_paused`
    for number in range(options.count):
        path = rng.choice(paths)
        data = files[path]
        for name in rng.sample(sorted(MUTATIONS), rng.randint(1, 3)):
            data = MUTATIONS[name](data, rng)
        try:
            found = python.findings(decode("a.py", data, python=True), context)
            safe = [f for f in found if f.tier is not Tier.REPORT and f.edits]
            proven = prove("a.py", data, safe, devices)
        except Unreadable:
            told["unreadable"] += 1
            continue
        except Exception as error:
            told["crashes"] += 1
            print(f"crash in case {number}, {path}: {error!r}")
            continue
        told["rewritten" if proven.findings else "no edit"] += 1
        again = changed_again(proven.content, context, devices) if proven.findings else False
        told["left out by the proof"] += len(proven.left)
        for name, fine in (
            ("outputs that do not parse", parses(proven.content) or not parses(data)),
            ("changed by a second rewrite", not again),
            ("bytes outside", outside_kept(data, proven.content, proven.findings)),
        ):
            if not fine:
                told[name] += 1
                print(f"{name}: case {number}, {path}")
    print(f"{options.count} cases of {len(files)} files: {dict(told)}")


if __name__ == "__main__":
    main()
