"""Verdicts that could be a yes too big: each way was written down before it was tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.profile import port
from joymigrate.profile.port import draw, fits, retry

HEAD = "import triton\nimport triton.language as tl\n"
JIT = "@triton.jit"
GIVEN = "kernel[(4,)](x, y, n, BLOCK=1024)"
STORE = "tl.store(Y + at, value, mask=mask)"
TUNED = "@triton.autotune(configs={}, key=['n'])\n@triton.jit"
NO_SIZE = "kernel[(4,)](x, y, n)"


def source(
    body: str = STORE, *, head: str = HEAD, jit: str = JIT, launch: str = GIVEN, above: str = ""
) -> str:
    """A kernel by lane with a body of its own."""
    lines = [
        "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "mask = at < n",
        "value = tl.load(X + at, mask=mask, other=0.0)", *body.splitlines(),
    ]  # fmt: skip
    inside = "".join(f"    {line}\n" for line in lines)
    kernel = f"{jit}\ndef kernel(X, Y, n, BLOCK: tl.constexpr):\n{inside}"
    return f"{head}{above}\n{kernel}\n\ndef call(x, y, n):\n    {launch or 'pass'}\n"


def verdicts(text: str) -> dict[str, str]:
    known = port.load(chips.target("ascend"))
    return {
        one.kernel: one.verdict for one in port.check_source(text.encode(), "own.py", known)
    }  # fmt: skip


ASM = "tl.inline_asm_elementwise('x', '=r,r', [value], dtype=tl.float32, is_pure=True, pack=1)"
LIVE = """up = tl.exp(value)
down = tl.exp(-value)
mean = tl.sum(up * down + up, 0)
value = value * mean + up / mean - down"""
USED = "value += tl.sum(tl.sum(wide * wide, 0), 0)\n" + STORE  # else the compiler drops it
BY_CALL = """kernel = triton.jit(kernel)
def best():
    return triton.Config(dict(BLOCK=131072))
kernel = triton.autotune([best()], key=["n"])(kernel)"""
BIG = "i = tl.arange(0, 256)\nat2 = i[:, None] * 256 + i[None, :]\nwide = tl.load(X + at2)\n" + USED


@pytest.mark.parametrize(
    "text",
    [
        source(jit=TUNED.format("[triton.Config({'BLOCK': b}) for b in (64, 131072)]"),
               launch=NO_SIZE),
        source(jit=TUNED.format("[triton.Config({'BLOCK': 2 ** i}) for i in range(10, 18)]"),
               launch=NO_SIZE),
        source(above="SIZES = [triton.Config({'BLOCK': 262144})]\n", jit=TUNED.format("SIZES"),
               launch=NO_SIZE),
        source(above="def sizes():\n    return [triton.Config({'BLOCK': 262144})]\n",
               jit=TUNED.format("sizes()"), launch=NO_SIZE),
        source(jit="@triton.heuristics({'BLOCK': lambda args: 131072})\n@triton.jit",
               launch=NO_SIZE),
        source(launch="kernel.run(x, y, n, BLOCK=131072, grid=(4,))"),
        source(launch="grid = (512, 512)\n    kernel[grid](x, y, n, BLOCK=1024)"),
        source(launch="kernel[lambda meta: (70000,)](x, y, n, BLOCK=1024)"),
        source(BIG),
        source("p = tl.make_block_ptr(X, (n, n), (n, 1), (0, 0), (512, 512), (1, 0))\n"
               "wide = tl.load(p)\n" + USED),
        source("value = value.to(tl.float8e4nv)\n" + STORE),
        source("while tl.atomic_cas(Y, 0, 1) == 1:\n    pass\n" + STORE),
        source("flag = 0\nwhile flag == 0:\n    flag = tl.load(Y, volatile=True)\n" + STORE),
        source("value = tl.cat(value, value)\n" + STORE),
        source("value = tl.dot_scaled(value, value, 'e4m3', value, value, 'e4m3')\n" + STORE),
        source("value = dot_scaled(value, value, 'e2m1', value, value, 'e2m1')\n" + STORE,
               head=HEAD + "from triton.language import dot_scaled\n"),
        source(f"value = {ASM.replace('tl.', 'tl.core.', 1)}\n{STORE}"),
        source("value = tl.associative_scan(value, 0, both)\n" + STORE,
               above=f"@triton.jit\ndef both(value, b):\n    return {ASM}\n"),
        source(jit="").replace("def call", "kernel = triton.jit(kernel)\n\ndef call").replace(
            STORE, f"value = {ASM}\n    {STORE}"),
        source(f"value = {ASM}\n{STORE}", above="own = triton.jit\n", jit="@own"),
        source(launch="kernel[(4,)](*pair, n, 131072)"),
        source(jit="", launch=NO_SIZE).replace("def call", BY_CALL + "\n\ndef call"),
        source("wide = tl.load(X + at[:, None] * BLOCK + at[None, :])\n" + USED,
               launch="kernel[(4,)](x, y, n, BLOCK=2048)"),
    ],
)  # fmt: skip
def test_what_needs_changes_is_not_said_to_work(text: str) -> None:
    assert verdicts(text)["kernel"] == "needs changes"


@pytest.mark.parametrize(
    "text",
    [
        source(launch="kernel[(4,)](x, y, n, BLOCK=64, launch_cooperative_grid=True)"),
        source(launch="kernel[(4,)](x, y, n, BLOCK=64, launch_pdl=True)"),
        source(head="import triton\nimport triton.experimental.gluon.language as tl\n"
                    "from triton.experimental import gluon\n", jit="@gluon.jit"),
        source(above="def made(f):\n    return triton.jit(f)\n", jit="@made"),
        source(above="code = compiled('k', '''\n@triton.jit\ndef k(X):\n    pass\n''')\n"),
        source("value = Y.gather(at, 0)\n" + STORE),
        source("value = getattr(tl, name)(value)\n" + STORE),
        source("value = tl.extra.tlx.local_alloc(value)\n" + STORE),
        source("left = tl.load(X + at)\nwhile left > 0:\n    left = left - 1\n" + STORE),
        source("a = BLOCK ** 63\nb = a ** 63\nc = b ** 63\nd = c ** 63\ne = d ** 63\n" + STORE),
        source("up = tl.exp(value)\nvalue = value * tl.sum(up, 0) + up\n" + STORE,
               launch="kernel[(4,)](x, y, n, BLOCK=16384)"),
    ],
)  # fmt: skip
def test_what_nobody_documents_is_not_judged(text: str) -> None:
    assert "not judged" in verdicts(text).values()


@pytest.mark.parametrize(
    "text",
    [
        source(),
        source(launch="kernel[(4,)](x, y, n, BLOCK=64, num_warps=4, multibuffer=True)"),
        source(jit=TUNED.format("[triton.Config({'BLOCK': b}, num_warps=4) for b in (64, 128)]"),
               launch=NO_SIZE),
        source("i = tl.arange(0, 64)\nv = tl.load(X + i[:, None] * 64 + i[None, :])\n" + STORE),
        source("left = tl.load(X)\nwhile left > 0:\n    left = left - 1\n" + STORE),
        source("p = tl.make_block_ptr(X, (n,), (1,), (0,), (BLOCK,), (0,))\n"
               "for i in range(4):\n    value += tl.load(p, boundary_check=(0,))\n"
               "    p = tl.advance(p, (BLOCK,))\n" + STORE),
        source("for i in tl.range(0, n, flatten=True):\n    value += i\n" + STORE),
        source("mean = tl.load(Y)\nscale = tl.load(Y + 1)\n" + STORE,
               launch="kernel[(4,)](x, y, n, BLOCK=16384)"),
        source("value = value.to(OUT)\n" + STORE, launch="kernel[(4,)](x, y, n, kind(x), 64)")
        .replace("n, BLOCK", "n, OUT: tl.constexpr, BLOCK"),
        source("value += (tl.load(X + at) >> 2).to(tl.float32)\n" + STORE),
    ],
)  # fmt: skip
def test_what_is_documented_works(text: str) -> None:
    assert verdicts(text) == {"kernel": "works"}


WIDE = "    wide = tl.load(X + at[:, None] * BLOCK + at[None, :])\n    value += tl.sum(wide, 0)\n"
FLAGS = "n, BLOCK: tl.constexpr, A: tl.constexpr, B: tl.constexpr"


def flagged(body: str, launch: str, parameters: str = FLAGS) -> str:
    """A kernel with flags behind its block."""
    return source(f"{body}\n{STORE}", launch=f"kernel[(4,)](x, y, n, {launch})").replace(
        "n, BLOCK: tl.constexpr", parameters
    )


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (flagged("if A:\n" + WIDE, "2048, y is not None, n > 3"), "needs changes"),
        (flagged("if A:\n    if not B:\n    " + WIDE.replace("\n    v", "\n        v"),
                 "2048, y is not None, n > 3"), "needs changes"),
        (flagged("if A:\n" + WIDE, "2048, False, n > 3"), "works"),
        (flagged("if A:\n" + WIDE, "2048", FLAGS.replace("A: tl.constexpr, B: tl.constexpr",
                 "A: tl.constexpr = False, B: tl.constexpr = False")), "works"),
        (flagged("if A:\n" + WIDE, "2048, **more", FLAGS.replace("A: tl.constexpr, B: tl.constexpr",
                 "A: tl.constexpr = False, B: tl.constexpr = False")), "needs changes"),
        (flagged("if A:\n    tl.static_assert(not B)", "64, y is not None, n > 3"), "works"),
        (flagged("if A:\n    more = value\nif B:\n    value += more",
                 "64, y is not None, n > 3"), "works"),
        (flagged("if A:\n    value += tl.sum(at, 7)", "64, y is not None, n > 3"), "not judged"),
        (flagged("if A == 'exp':\n    value = tl.exp(value)\nelif A == 'wide':\n" + WIDE,
                 "2048, kind, n > 3"), "needs changes"),
        (flagged("if value.dtype == tl.float16:\n" + WIDE, "2048, False, False"),
         "needs changes"),
        (flagged("if A:\n    value += tl.load(z)\nelse:\n    value += z",
                 "z, 64, x is y, False", FLAGS.replace("n,", "n, z,")), "works"),
        (flagged("value = tl.cumsum(value, 0, reverse=A)\nif A:\n" + WIDE, "2048, x is y, False"),
         "needs changes"),
        (flagged("value += tl.sum(tl.load(X + tl.arange(0, BLOCK + B)), 0)",
                 "64, x is y, n"), "not judged"),
        (flagged("if value.dtype == tl.int8:\n    value += 1", "64, False, False"),
         "not judged"),
        (flagged("value += " + " + ".join(f"(1 if F{i} else 2)" for i in range(7)),
                 ", ".join(["64", *(f"n > {i}" for i in range(7))]),
                 "n, BLOCK: tl.constexpr, " + ", ".join(f"F{i}: tl.constexpr" for i in range(7))),
         "not judged"),
    ],
)  # fmt: skip
def test_every_branch_that_no_launch_decides_is_compiled(text: str, verdict: str) -> None:
    assert verdicts(text)["kernel"] == verdict


LIBRARY = HEAD + "from triton.language.extra{} import libdevice\n"


@pytest.mark.parametrize(
    ("package", "call", "verdict", "said"),
    [
        (".cann", "tanh(value)", "works", ""),
        (".ascend", "pow(value, value)", "works", ""),
        (".cann", "rint(value)", "not judged", "the chip's libdevice has no rint"),
        ("", "tanh(value)", "needs changes", "has no body there"),
        ("", "exp(value)", "needs changes", "has no body there"),
        ("", "rint(value)", "not judged", "the chip's libdevice has no rint"),
        (".cuda", "tanh(value)", "does not work", "triton.language.extra.cuda.libdevice.tanh"),
    ],
)
def test_functions_of_libdevice_are_those_that_the_chips_library_has(
    package: str, call: str, verdict: str, said: str
) -> None:
    text = source(f"value = libdevice.{call}\n{STORE}", head=LIBRARY.format(package))
    (found,) = port.check_source(text.encode(), "own.py", port.load(chips.target("ascend")))
    assert found.verdict == verdict
    assert any(said in note.message for note in found.notes)


def test_a_size_of_run_time_is_a_condition() -> None:
    text = source(launch="kernel[(4,)](x, y, n, BLOCK=triton.next_power_of_2(n))")
    (found,) = port.check_source(text.encode(), "own.py", port.load(chips.target("ascend")))
    assert "up to BLOCK = 16384, which no launch in the file says" in " ".join(
        note.message for note in found.notes
    )


@pytest.mark.parametrize(
    "text",
    [
        source(launch="grid = grid\n    kernel[grid](x, y, n, BLOCK=64)"),
        source(launch="one = two\n    two = one\n    kernel[one](x, y, n, BLOCK=64)"),
        source(jit=TUNED.format("[triton.Config({'BLOCK': 1 << i}) for i in range(0)]")),
        source(jit=TUNED.format("[triton.Config({'BLOCK': 0 ** i}) for i in range(0)]")),
        source("a = tl.expand_dims(at, 0)\ntl.load(X + a + at[None, :])\n" + STORE,
               launch="kernel[(4,)](x, y, n, BLOCK=4096)"),
    ],
)  # fmt: skip
def test_odd_sizes_are_read_to_an_end(text: str) -> None:
    assert verdicts(text) == {"kernel": "works"}


def test_what_lives_at_once_decides_and_not_the_largest_tile() -> None:
    known = port.load(chips.target("ascend"))
    text = source(f"{LIVE}\n{STORE}", launch="kernel[(4,)](x, y, n, BLOCK=32768)")
    (found,) = port.check_source(text.encode(), "own.py", known)
    assert found.verdict == "needs changes"
    assert "live at once in the unified buffer, which has 192 KB" in found.notes[0].message
    small = source(f"{LIVE}\n{STORE}")
    (found,) = port.check_source(small.encode(), "own.py", known)
    assert found.verdict == "works"
    assert any("lives at once, with double buffers" in note.message for note in found.notes)


def test_without_triton_nothing_is_said_to_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits.importlib.util, "find_spec", lambda name: None)
    assert verdicts(source()) == {"kernel": "not judged"}


def test_configurations_that_are_not_compiled_are_no_yes() -> None:
    """25 configurations, of which 24 are compiled: the last alone is too large."""
    many = "[triton.Config({'BLOCK': 64}, num_warps=2 ** (i % 5), num_stages=i) for i in range(24)]"
    last = f"{many} + [triton.Config({{'BLOCK': 1 << 17}})]"
    listed = ", ".join(["triton.Config({'BLOCK': 64})"] * 24 + ["triton.Config({'BLOCK': 131072})"])
    for tuned in (last, f"[{listed}]"):
        text = source(jit=TUNED.format(tuned), launch=NO_SIZE)
        assert verdicts(text) != {"kernel": "works"}


def test_a_size_that_no_launch_says_is_tried_up_to_the_memory() -> None:
    known = port.load(chips.target("ascend"))
    text = source(launch="").replace("def call", "def other")
    (found,) = port.check_source(text.encode(), "own.py", known)
    assert found.verdict == "works"
    assert "up to BLOCK = " in " ".join(note.message for note in found.notes)


def test_the_languages_own_functions_are_known_by_their_modules() -> None:
    head = HEAD + "from triton.language.standard import sum as add_up\n"
    assert verdicts(source("value = value + add_up(value, 0)\n" + STORE, head=head)) == {
        "kernel": "works"
    }


@pytest.mark.parametrize(
    ("body", "verdict", "refused"),
    [
        (STORE, "works", ""),
        (
            "value = tl.exp(value) / tl.sum(tl.exp(value), 0)\n" + STORE,
            "needs changes",
            "its variant needs",
        ),
    ],
)
def test_a_variant_is_judged_as_an_original_is(
    body: str, verdict: str, refused: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(source(body, launch="kernel[(70000,)](x, y, n, BLOCK=131072)"))
    known = port.load(chips.target("ascend"))
    (found,) = port.port_files([file], known, tmp_path / "out", proves=False)
    assert found.port.refused.startswith(refused)
    assert found.verdict is not None
    assert found.verdict.verdict == verdict


@pytest.mark.parametrize("kind", ["flag", "choice", "none"])
def test_the_front_end_is_asked_about_other_types_and_not_about_other_branches(kind: str) -> None:
    role = draw.Role("FAST", kind, constexpr=True)
    assert not any(change(role) for change in retry.OF_TYPE)
