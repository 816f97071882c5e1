"""Translates C++ functions that call ATen, and simple CUDA kernels, to Python: whole or not at all.

A statement or an expression that is not known raises `Untranslated` with its line; nothing is
guessed. Checks of the device and of macros named CHECK are left out.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from typing import Any

from joymigrate.profile.port.cpp import CppFunction, Sources, declarator_of, text_of
from joymigrate.profile.port.expressions import LARGE, ExpressionWriter
from joymigrate.profile.port.syntax import (
    FunctionFrame,
    Untranslated,
    assigned_names,
    at,
    differ,
    fits,
    indent,
    inner_is_plain,
    last_identifier,
    parameters_of,
    plainly_whole,
    uses_grid,
)

INTEGRAL = re.compile(
    r"^(const |static |constexpr )*(unsigned|u?int\d*_t|int|long|short|size_t|bool)\b"
)
REAL = re.compile(
    r"^(const |static |constexpr )*(float|double|scalar_t|T|acc_t|accscalar_t|opmath_t)\b(?!\s*\*)"
)
CHECKS = re.compile(r"^(TORCH_CHECK\w*|AT_ASSERT\w*|AT_CHECK|TORCH_INTERNAL_ASSERT\w*|assert)$")
SKIPPED = re.compile(
    r"^(\w*CHECK_(?!EQ|LE|LT|GE|GT|NE)\w*|C10_CUDA_\w+|AT_CUDA_CHECK|CUDA_CHECK\w*|cudaGetLastError|cudaDeviceSynchronize"
    r"|fprintf|printf|exit|\w*CHECK|__syncwarp)$"
)
GUARDS = ("NoGradGuard", "CUDAGuard", "DeviceGuard", "cudaError_t", "cudaStream_t",
          "OptionalCUDAGuard", "RECORD_FUNCTION")  # fmt: skip


class Translation(ExpressionWriter):
    """Functions of some sources, translated on demand."""

    def __init__(self, sources: Sources, *, on_device: bool = False) -> None:
        self.sources = sources
        self.on_device = on_device  # which side of `if (x.is_cuda())` is taken
        self.texts: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self.chosen: dict[str, CppFunction] = {}
        self.busy: set[str] = set()
        self.frame = FunctionFrame([{}], set())

    def function(self, name: str, count: int | None = None) -> str:
        """Translate a function; its Python name. Of overloads, the one with that many arguments."""
        if name in self.sources.specialised:
            raise Untranslated(f"{name}: a template with specialisations")
        found = self.sources.functions.get(name, [])
        fitting = [one for one in found if count is None or fits(one, count)]
        if not fitting:
            raise Untranslated(f"{name}: no definition in the files that were read")
        if len(fitting) > 1 and len({text_of(one.node) for one in fitting}) > 1 and count is None:
            raise Untranslated(f"{name}: {len(fitting)} definitions")
        if any(differ(fitting[0], one) for one in fitting[1:]):
            raise Untranslated(f"{name}: {len(fitting)} definitions that differ by types")
        if self.chosen.setdefault(name, fitting[0]) is not fitting[0]:
            raise Untranslated(f"{name}: two of its definitions are called")
        python = name if not keyword.iskeyword(name) else f"{name}_"
        if name not in self.texts and name not in self.busy:
            self.busy.add(name)
            before, self.frame = self.frame, FunctionFrame([{}], set())
            try:
                self.texts[name] = self.written(python, fitting[0])
            finally:
                self.frame = before
                self.busy.discard(name)
        return python

    def written(self, name: str, function: CppFunction) -> str:
        """The text of one function."""
        body = function.node.child_by_field_name("body")
        self.frame.kernel = function.kernel
        taken = ["_at"] if function.kernel or uses_grid(body) else []
        self.frame.used |= set(taken)
        for value in function.values:
            taken.append(self.declare(value))
        taken += list(self.parameters(function))
        kind = text_of(function.node.child_by_field_name("type") or function.node)
        self.frame.returns = kind if inner_is_plain(function.node) else ""
        lines = self.block(body)
        if lines and lines[0].startswith("raise"):
            raise Untranslated(at(body, "it only raises"))
        first = [f"{one} = _real({one})" for one in taken if one in self.frame.real]
        return "\n".join(
            [f"def {name}({', '.join(taken)}):", *indent([*first, *lines] or ["pass"])]
        )

    def kinds(self, python: str, kind: str) -> None:
        """Note what kind of number a variable holds."""
        if INTEGRAL.match(kind):
            self.frame.whole.add(python)
        elif REAL.match(kind):
            self.frame.real.add(python)

    def held(self, target: str, value: str, node: Any = None) -> str:
        """A value as the variable of its type holds it."""
        base = target.partition("[")[0]
        if base in self.frame.whole and not (node is not None and plainly_whole(node)):
            return f"_int({value})"
        return f"_real({value})" if base in self.frame.real else value

    def parameters(self, function: CppFunction) -> Iterator[str]:
        """Python's parameters."""
        inner = declarator_of(function.node)
        assigned = assigned_names(function.node.child_by_field_name("body"))
        for number, one in enumerate(inner.child_by_field_name("parameters").named_children):
            if one.type == "comment":
                continue
            place = one.child_by_field_name("declarator")
            reference = place is not None and place.type == "reference_declarator"
            name = last_identifier(place) if place is not None else f"argument{number}"
            const = text_of(one).lstrip().startswith("const")
            if reference and not const and name in assigned:
                raise Untranslated(at(one, f"the reference '{name}' is assigned"))
            default = one.child_by_field_name("default_value")
            python = self.declare(name)
            if "optional<" in text_of(one):
                self.frame.optional.add(python)
            if place is None or place.type == "identifier":
                self.kinds(python, text_of(one.child_by_field_name("type")))
            yield python if default is None else f"{python}={self.expression(default)}"

    def declare(self, name: str) -> str:
        """A Python name for a variable of this block; one of an outer block stays another one."""
        python = f"{name}_" if keyword.iskeyword(name) or name in ("torch", "math") else name
        while python in self.frame.used:
            python += "_"
        self.frame.used.add(python)
        self.frame.scopes[-1][name] = python
        return python

    def block(self, node: Any) -> list[str]:
        """Statements in a scope of their own."""
        self.frame.scopes.append({})
        lines: list[str] = []
        children = (
            node.named_children if node.type in ("compound_statement", "case_statement") else [node]
        )
        for child in children:
            lines += self.statement(child)
            if self.steps(child):
                lines.append("yield 0")
        self.frame.scopes.pop()
        return lines

    def steps(self, node: Any) -> bool:
        """Whether the other threads of a warp take this statement before anyone goes on."""
        if node.type not in ("expression_statement", "declaration") or not self.frame.shared:
            return False
        said = text_of(node)
        return not said.startswith("static") and any(
            re.search(rf"\b{name}\b", said) for name in self.frame.shared
        )

    def statement(self, node: Any) -> list[str]:
        """Lines of one statement."""
        kind = node.type
        if kind in ("comment", "using_declaration", "alias_declaration", "type_definition",
                    "static_assert_declaration", "preproc_call"):  # fmt: skip
            return []
        if kind == "compound_statement":
            return self.block(node)
        handler = getattr(self, f"on_{kind}", None)
        if handler is None:
            raise Untranslated(at(node, f"a {kind.replace('_', ' ')}"))
        lines: list[str] = handler(node)
        return lines

    def on_expression_statement(self, node: Any) -> list[str]:
        inner = node.named_children[0] if node.named_children else None
        if inner is None or inner.type == "comment":
            return []
        if inner.type == "call_expression":
            return self.call_statement(inner)
        if inner.type == "assignment_expression":
            return self.assignment(inner)
        if inner.type == "update_expression":
            target = self.expression(inner.child_by_field_name("argument"))
            sign = "+" if "++" in text_of(inner) else "-"
            return [f"{target} = {target} {sign} 1"]
        if inner.type == "comma_expression":
            return [line for part in inner.named_children for line in self.loose(part)]
        return [self.expression(inner)]

    def loose(self, node: Any) -> list[str]:
        """A statement that is written as an expression."""
        if node.type == "assignment_expression":
            return self.assignment(node)
        if node.type == "update_expression":
            target = self.expression(node.child_by_field_name("argument"))
            return [f"{target} = {target} {'+' if '++' in text_of(node) else '-'} 1"]
        if node.type == "comma_expression":
            return [line for part in node.named_children for line in self.loose(part)]
        return [self.expression(node)]

    def call_statement(self, node: Any) -> list[str]:
        """Checks, dispatches over types, parallel loops, barriers; any other call."""
        name = text_of(node.child_by_field_name("function"))
        given = [c for c in node.child_by_field_name("arguments").named_children
                 if c.type != "comment"]  # fmt: skip
        base = name.rpartition("::")[2]
        if CHECKS.match(base):
            return self.check(given)
        if SKIPPED.match(base):
            return []
        if base.startswith("AT_DISPATCH") or name.startswith("DISPATCH_"):
            inner = given[-1]
            while inner.type == "parenthesized_expression":
                inner = inner.named_children[-1]
            if inner.type != "lambda_expression":
                raise Untranslated(at(node, "a dispatch without a lambda"))
            return self.block(inner.child_by_field_name("body"))
        if base == "parallel_for" and given[-1].type == "lambda_expression":
            return self.parallel(given)
        if base == "__syncthreads":
            return ["yield 1"]
        if base == "AT_ERROR":
            words = [text_of(c) for c in given if c.type == "string_literal"]
            return [f"raise RuntimeError({words[0] if words else repr(text_of(node))})"]
        return [self.expression(node)]

    def check(self, given: list[Any]) -> list[str]:
        """A check that raises; those of devices go."""
        said = text_of(given[0])
        if re.search(r"is_cuda|\.device\(\)|is_cpu|getCurrentDevice|kCUDA|cudaSuccess", said):
            return []
        words = [c for part in given[1:] for c in [part] if c.type == "string_literal"]
        message = text_of(words[0]) if words else repr(said)
        return [f"if not {self.expression(given[0])}:", f"    raise RuntimeError({message})"]

    def parallel(self, given: list[Any]) -> list[str]:
        """at::parallel_for: the whole range at once."""
        inner = given[-1]
        names = [last_identifier(p) for p in parameters_of(inner)]
        self.frame.scopes.append({})
        first, last = (self.declare(name) for name in names)
        lines = [f"{first}, {last} = {self.expression(given[0])}, {self.expression(given[1])}"]
        lines += self.block(inner.child_by_field_name("body"))
        self.frame.scopes.pop()
        return lines

    def on_declaration(self, node: Any) -> list[str]:
        kind = text_of(node.child_by_field_name("type") or node)
        prefix = text_of(node)
        if any(guard in kind for guard in GUARDS):
            self.frame.dropped |= {
                last_identifier(c) for c in node.children_by_field_name("declarator")
            }
            return []
        lines: list[str] = []
        for one in node.children_by_field_name("declarator"):
            lines += self.declared(one, kind, prefix)
        return lines

    def declared(self, one: Any, kind: str, prefix: str) -> list[str]:
        """One variable of a declaration."""
        shared = self.frame.kernel and prefix.startswith("static")
        if one.type == "init_declarator":
            place, value = one.child_by_field_name("declarator"), one.child_by_field_name("value")
            if place.type == "structured_binding_declarator":
                right = self.expression(value)
                names = [self.declare(text_of(c)) for c in place.named_children]
                return [f"{', '.join(names)} = {right}"]
            if place.type == "array_declarator":
                right = self.expression(value)
                size = self.sizes(place)
                name = self.declare(last_identifier(place))
                return [f"{name} = ({right} + _array({size}))[: {size}]"]
            if place.type == "reference_declarator" and not prefix.startswith("const"):
                self.frame.frozen.add(last_identifier(place))
            plain = "" if place.type == "pointer_declarator" else kind
            right = self.initial(value, plain)
            python = self.declare(last_identifier(place))
            self.kinds(python, plain)
            if "optional<" in kind:
                self.frame.optional.add(python)
            return [f"{python} = {right}"]
        if one.type == "array_declarator":
            name = last_identifier(one)
            sizes = self.sizes(one)
            python = self.declare(name)
            self.frame.arrays.add(python)
            if INTEGRAL.match(kind):
                self.frame.whole.add(python)
            if shared:
                self.frame.shared.add(name)
            return [f"{python} = _at.shared({name!r}, {sizes})" if shared
                    else f"{python} = _array({sizes})"]  # fmt: skip
        if one.type == "function_declarator":  # `dim3 grid(a, b)` reads like a function
            inner = [self.named(last_identifier(p) if p.named_child_count else text_of(p), p)
                     for p in one.child_by_field_name("parameters").named_children]  # fmt: skip
            name = self.declare(last_identifier(one.child_by_field_name("declarator")))
            return [f"{name} = {self.built(kind, inner, one)}"]
        empty = "[]" if "vector" in kind else "None" if "Tensor" in kind or "auto" in kind else "0"
        python = self.declare(last_identifier(one))
        if one.type == "identifier":
            self.kinds(python, kind)
        return [f"{python} = {empty}"]

    def initial(self, value: Any, kind: str) -> str:
        """The first value of a variable with its type's conversion."""
        if value.type == "argument_list":
            inner = [self.expression(c) for c in value.named_children]
            return self.built(kind, inner, value)
        right = self.expression(value)
        if INTEGRAL.match(kind) and not plainly_whole(value):
            return f"_int({right})"
        return f"_real({right})" if REAL.match(kind) else right

    def sizes(self, node: Any) -> str:
        """The sizes of an array declarator, outermost first."""
        found: list[str] = []
        while node.type == "array_declarator":
            size = node.child_by_field_name("size")
            if size is None:
                raise Untranslated(at(node, "an array without a size"))
            found.insert(0, self.expression(size))
            node = node.child_by_field_name("declarator")
        return ", ".join(found)

    def assignment(self, node: Any) -> list[str]:
        """`=`, `+=` and the like."""
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        sign = text_of(node.child_by_field_name("operator"))
        if left.type == "identifier" and text_of(left) in self.frame.frozen:
            raise Untranslated(at(node, f"the reference '{text_of(left)}' is assigned"))
        if left.type == "identifier" and text_of(left) in self.frame.dropped:
            return []
        if right.type == "assignment_expression":
            inner = self.assignment(right)
            value = self.expression(right.child_by_field_name("left"))
            return [*inner, f"{self.expression(left)} = {value}"]
        target, value = self.target(left), self.expression(right)
        if sign == "=":
            return [f"{target} = {self.held(target, value, right)}"]
        if sign == "*=" and value.isdecimal() and int(value) > LARGE:
            raise Untranslated(at(node, "a product that may wrap around"))
        if sign in ("/=", "%="):
            name = "_div" if sign == "/=" else "_mod"
            return [f"{target} = {self.held(target, f'{name}({target}, {value})')}"]
        if target.partition("[")[0] in self.frame.whole and not plainly_whole(right):
            return [f"{target} = _int({target} {sign[:-1]} {value})"]
        return [f"{target} {sign} {value}"]

    def target(self, node: Any) -> str:
        """What stands left of an assignment."""
        if node.type == "call_expression" and text_of(node).startswith("std::tie"):
            return ", ".join(self.expression(c) for c in
                             node.child_by_field_name("arguments").named_children)  # fmt: skip
        if node.type == "call_expression":
            raise Untranslated(at(node, "an assignment to what a call returns"))
        return self.expression(node)

    def on_if_statement(self, node: Any) -> list[str]:
        condition = node.child_by_field_name("condition")
        if any(re.search(rf"\b{name}\b", text_of(condition)) for name in self.frame.dropped):
            return []
        decided = self.decided(condition)
        if decided is not None:
            taken = node.child_by_field_name("consequence" if decided else "alternative")
            return self.only_side(taken.named_children[-1] if taken is not None and not decided
                                  else taken)  # fmt: skip
        test = self.expression(condition.named_children[-1])
        lines = [
            f"if {test}:",
            *indent(self.block(node.child_by_field_name("consequence")) or ["pass"]),
        ]
        other = node.child_by_field_name("alternative")
        if other is not None:
            inner = self.block(other.named_children[-1])
            lines += ["else:", *indent(inner or ["pass"])]
        return lines

    def decided(self, condition: Any) -> bool | None:
        """The answer of a test that asks for the device alone."""
        said = text_of(condition).strip("() ")
        if not re.fullmatch(r"!?[\w.()\->]*is_(cuda|cpu)\(?\)?", said):
            return None
        return ("is_cuda" in said) == self.on_device if not said.startswith("!") else (
            "is_cuda" in said) != self.on_device  # fmt: skip

    def only_side(self, node: Any) -> list[str]:
        """The side of a test that the device decides; one that only raises is none."""
        if node is None:
            return []
        first = node.named_children[0] if node.type == "compound_statement" else node
        if node.named_children and re.match(
            r"(AT_ERROR|TORCH_CHECK\w*\s*\(\s*false|AT_ASSERT\w*\s*\(\s*false|throw)",
            text_of(first),
        ):
            side = "a GPU" if self.on_device else "the CPU"
            raise Untranslated(at(node, f"it only raises on {side}"))
        return self.block(node)

    def on_preproc_ifdef(self, node: Any) -> list[str]:
        """`#ifdef WITH_CUDA` inside a function."""
        name = text_of(node.child_by_field_name("name"))
        if not re.search(r"CUDA|GPU", name):
            raise Untranslated(at(node, f"#ifdef {name}"))
        taken = self.on_device
        taken = taken != text_of(node).startswith("#ifndef")
        other = node.child_by_field_name("alternative")
        parts = node.named_children[1:] if taken else other.named_children if other else []
        lines: list[str] = []
        for part in parts:
            if part.type not in ("preproc_else", "comment"):
                lines += self.statement(part)
        return lines

    def on_for_statement(self, node: Any) -> list[str]:
        self.frame.scopes.append({})
        first = node.child_by_field_name("initializer")
        lines = []
        if first is not None:
            lines = self.on_declaration(first) if first.type == "declaration" else self.loose(first)
        test = node.child_by_field_name("condition")
        update = node.child_by_field_name("update")
        steps = self.loose(update) if update is not None else []
        self.frame.updates.append(steps)
        body = self.block(node.child_by_field_name("body"))
        self.frame.updates.pop()
        said = self.expression(test) if test is not None else "True"
        self.frame.scopes.pop()
        return [*lines, f"while {said}:", *indent([*body, *steps] or ["pass"])]

    def on_for_range_loop(self, node: Any) -> list[str]:
        over = self.expression(node.child_by_field_name("right"))
        self.frame.scopes.append({})
        place = node.child_by_field_name("declarator")
        name = last_identifier(place)
        if place.type == "reference_declarator":
            self.frame.frozen.add(name)
        python = self.declare(name)
        self.frame.updates.append([])
        body = self.block(node.child_by_field_name("body"))
        self.frame.updates.pop()
        self.frame.scopes.pop()
        return [f"for {python} in {over}:", *indent(body or ["pass"])]

    def on_while_statement(self, node: Any) -> list[str]:
        test = self.expression(node.child_by_field_name("condition").named_children[-1])
        self.frame.updates.append([])
        body = self.block(node.child_by_field_name("body"))
        self.frame.updates.pop()
        return [f"while {test}:", *indent(body or ["pass"])]

    def on_continue_statement(self, node: Any) -> list[str]:
        return [*(self.frame.updates[-1] if self.frame.updates else []), "continue"]

    def on_break_statement(self, node: Any) -> list[str]:
        return ["break"]

    def on_return_statement(self, node: Any) -> list[str]:
        inner = [c for c in node.named_children if c.type != "comment"]
        if not inner:
            return ["return"]
        if inner[0].type == "initializer_list":
            return [f"return {self.expression(inner[0])}"]
        value = self.expression(inner[0])
        if INTEGRAL.match(self.frame.returns):
            return [f"return _int({value})"]
        return [f"return _real({value})" if REAL.match(self.frame.returns) else f"return {value}"]

    def on_switch_statement(self, node: Any) -> list[str]:
        value = self.expression(node.child_by_field_name("condition").named_children[-1])
        lines: list[str] = []
        waiting: list[str] = []
        word = "if"
        for case in node.child_by_field_name("body").named_children:
            if case.type != "case_statement":
                continue
            said = case.child_by_field_name("value")
            inner = [
                c
                for c in case.named_children
                if c is not said and (said is None or c.id != said.id)
            ]
            if said is not None:
                waiting.append(f"{value} == {self.expression(said)}")
            if not inner and said is not None:
                continue
            if inner and inner[-1].type == "break_statement":
                inner = inner[:-1]
            elif said is not None and (not inner or inner[-1].type != "return_statement"):
                raise Untranslated(at(case, "a case that falls through"))
            if any("break" in text_of(c) for c in inner):
                raise Untranslated(at(case, "a break inside a case"))
            body = [line for c in inner for line in self.statement(c)]
            head = (
                f"{word} {' or '.join(waiting)}:"
                if said is not None
                else "else:"
                if lines
                else "if True:"
            )
            lines += [head, *indent(body or ["pass"])]
            word, waiting = "elif", []
        return lines
