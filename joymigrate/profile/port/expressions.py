"""Expressions of C++ host code and CUDA kernels in Python."""

from __future__ import annotations

import keyword
import re
from typing import Any

from joymigrate.profile.port.cpp import CppFunction, Sources, text_of, top_level
from joymigrate.profile.port.syntax import FunctionFrame, Untranslated, uses_grid

DTYPES = {
    "kFloat": "float32", "kFloat32": "float32", "kDouble": "float64", "kFloat64": "float64",
    "kHalf": "float16", "kFloat16": "float16", "kBFloat16": "bfloat16", "kInt": "int32",
    "kInt32": "int32", "kLong": "int64", "kInt64": "int64", "kShort": "int16", "kInt16": "int16",
    "kByte": "uint8", "kUInt8": "uint8", "kChar": "int8", "kInt8": "int8", "kBool": "bool",
    "ScalarType::Float": "float32", "ScalarType::Half": "float16", "ScalarType::Int": "int32",
    "ScalarType::Double": "float64", "ScalarType::Long": "int64",
    "ScalarType::BFloat16": "bfloat16",
    "ScalarType::Bool": "bool", "ScalarType::Byte": "uint8",
}  # fmt: skip
WORDS = {"true": "True", "false": "False", "nullptr": "None", "NULL": "None", "nullopt": "None",
         "None": "None", "M_PI": "math.pi", "INFINITY": "math.inf", "INT_MAX": "2147483647",
         "FLT_MAX": "3.4028234663852886e38", "FLT_MIN": "1.1754943508222875e-38",
         "FLT_EPSILON": "1.1920929e-07"}  # fmt: skip
METHODS = {  # of tensors and optional values, without arguments
    "sizes": "list({0}.shape)", "strides": "list({0}.stride())", "scalar_type": "{0}.dtype",
    "dtype": "{0}.dtype", "device": "{0}.device", "options": "_Options.of({0})",
    "type": "{0}.dtype", "is_cuda": "_ON_DEVICE",
    "defined": "({0} is not None)", "has_value": "({0} is not None)", "value": "{0}",
    "ndimension": "{0}.dim()", "empty": "(len({0}) == 0)", "back": "{0}[-1]",
    "front": "{0}[0]", "toTensor": "{0}", "vec": "list({0})", "get_device": "{0}.get_device()",
}  # fmt: skip
POINTERS = frozenset(("data_ptr", "data", "mutable_data_ptr", "const_data_ptr"))
ACCESSORS = frozenset(("accessor", "packed_accessor", "packed_accessor32", "packed_accessor64"))
NUMBERS = {"fabs": "abs", "abs": "abs", "min": "min", "max": "max", "fmin": "min", "fmax": "max",
           "fminf": "min", "fmaxf": "max", "fabsf": "abs", "round": "_round",
           "roundf": "_round"}  # fmt: skip
FUNCTIONS = frozenset(
    ("sqrt", "exp", "log", "floor", "ceil", "pow", "tanh", "sin", "cos", "tan", "log2", "log10",
     "log1p", "expm1", "erf", "atan", "atan2", "acos", "asin", "fmod", "exp2", "sinh", "cosh",
     "hypot", "trunc")
)  # fmt: skip
ATOMICS = {"atomicAdd": "_atomic_add", "gpuAtomicAdd": "_atomic_add", "atomicMax": "_atomic_max",
           "gpuAtomicAddNoReturn": "_atomic_add", "atomicMin": "_atomic_min"}  # fmt: skip
LIMITS = {"max": "3.4028234663852886e38", "lowest": "-3.4028234663852886e38",
          "infinity": "math.inf", "epsilon": "1.1920929e-07"}  # fmt: skip
FACTORIES = {"zeros": 1, "ones": 1, "empty": 1, "rand": 1, "randn": 1, "full": 2, "zeros_like": 1,
             "ones_like": 1, "empty_like": 1, "full_like": 2, "tensor": 1, "eye": 1,
             "scalar_tensor": 1, "randint": 3}  # fmt: skip
OBJECTS = ("Slice", "TensorOptions", "dim3", "scalar_t", "T", "Tensor", "int64_t", "IntArrayRef",
           "Scalar", "size_t")  # fmt: skip
SPACES = ("torch", "at", "at::native", "torch::nn::functional", "F", "at::special", "at::linalg")
TRUTHS = frozenset(("==", "!=", "<", ">", "<=", ">=", "&&", "||", "!"))
LARGE = 65535  # a product with more may leave 32 bits
REALS = re.compile(r"\b(float|double|scalar_t|T|acc_t|accscalar_t|opmath_t)\b")
WHOLE = re.compile(r"\b(unsigned|u?int\d*_t|int|long|short|size_t)\b")


class ExpressionWriter:
    """The part of a translation that writes expressions."""

    sources: Sources
    frame: FunctionFrame
    constants: dict[str, str]
    chosen: dict[str, CppFunction]  # of a name's definitions, the one that is translated

    on_device: bool

    def function(self, name: str, count: int | None = None) -> str:
        """Translate a function of the sources; its Python name."""
        raise NotImplementedError

    def expression(self, node: Any) -> str:
        """One expression."""
        handler = getattr(self, f"as_{node.type}", None)
        if handler is None:
            raise Untranslated(f"line {node.start_point[0] + 1}: a {node.type.replace('_', ' ')}")
        text: str = handler(node)
        return text

    def named(self, name: str, node: Any) -> str:
        """A variable, a constant of the files, or a word of C++."""
        for scope in reversed(self.frame.scopes):
            if name in scope:
                return scope[name]
        base = name.rpartition("::")[2]
        for key in (name, "::".join(name.split("::")[-2:]), base):
            if key in DTYPES:
                return f"torch.{DTYPES[key]}"
        if base in WORDS:
            return WORDS[base]
        if base in ("threadIdx", "blockIdx", "blockDim", "gridDim"):
            return f"_at.{base}"
        if re.fullmatch(r"[-+]?\d+", name):
            return name
        if name in self.sources.constants:
            return self.constant(name)
        if base == "None":
            return "None"
        raise Untranslated(f"line {node.start_point[0] + 1}: '{name}' is not known")

    def constant(self, name: str) -> str:
        """A constant of the files, written once."""
        if name not in self.constants:
            value = self.sources.constants[name]
            if isinstance(value, str):
                number = value.strip("() ").rstrip("fFlLuU")
                if not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", number, re.IGNORECASE):
                    raise Untranslated(f"the macro {name} is '{value[:40]}'")
                self.constants[name] = number
            else:
                self.constants[name] = self.expression(value)
        return name if not keyword.iskeyword(name) else f"{name}_"

    def as_identifier(self, node: Any) -> str:
        return self.named(text_of(node), node)

    as_qualified_identifier = as_identifier

    def as_number_literal(self, node: Any) -> str:
        text = text_of(node).replace("'", "")
        if wraps(text):
            raise Untranslated(
                f"line {node.start_point[0] + 1}: a product with {text} may wrap around"
            )
        if text.lower().startswith("0x"):
            return str(int(text.rstrip("uUlL"), 16))
        text = text.rstrip("uUlLfF") if not text.lower().startswith("0x") else text
        text = re.sub(r"^0+(?=\d)", "", text)
        return f"{text}0" if text.endswith(".") else text

    def as_true(self, node: Any) -> str:
        return "True"

    def as_false(self, node: Any) -> str:
        return "False"

    def as_null(self, node: Any) -> str:
        return "None"

    def as_string_literal(self, node: Any) -> str:
        return text_of(node)

    def as_parenthesized_expression(self, node: Any) -> str:
        return self.expression(node.named_children[-1])

    def as_condition_clause(self, node: Any) -> str:
        return self.expression(node.named_children[-1])

    def as_initializer_list(self, node: Any) -> str:
        inner = [self.expression(c) for c in node.named_children if c.type != "comment"]
        return f"[{', '.join(inner)}]"

    def as_binary_expression(self, node: Any) -> str:
        left, right = (self.expression(node.child_by_field_name(k)) for k in ("left", "right"))
        sign = text_of(node.child_by_field_name("operator"))
        if sign == "*" and any(one.isdecimal() and int(one) > LARGE for one in (left, right)):
            raise Untranslated(f"line {node.start_point[0] + 1}: a product that may wrap around")
        if sign in ("&&", "||"):
            left, right = (
                text if is_truth(node.child_by_field_name(k)) else f"bool({text})"
                for k, text in (("left", left), ("right", right))
            )
        if sign == "/":
            return f"_div({left}, {right})"
        if sign == "%":
            return f"_mod({left}, {right})"
        if sign == "+" and re.fullmatch(r"\w+", left):
            return f"_add({left}, {right})" if self.may_be_array(left) else f"({left} + {right})"
        sign = {"&&": "and", "||": "or"}.get(sign, sign)
        if sign in ("==", "!=") and "None" in (left, right):
            sign = "is" if sign == "==" else "is not"
        return f"({left} {sign} {right})"

    def may_be_array(self, name: str) -> bool:
        """Whether a name holds a C array."""
        return name in self.frame.arrays

    def as_unary_expression(self, node: Any) -> str:
        sign = text_of(node.child_by_field_name("operator"))
        inner = self.expression(node.child_by_field_name("argument"))
        return f"(not {inner})" if sign == "!" else f"({sign}{inner})"

    def as_pointer_expression(self, node: Any) -> str:
        sign, inner = text_of(node)[0], node.child_by_field_name("argument")
        if sign == "*":
            base = self.expression(inner)
            return base if base in self.frame.optional else f"{base}[0]"
        if inner.type == "subscript_expression":
            base = self.expression(inner.child_by_field_name("argument"))
            index = self.expression(inner.named_children[-1].named_children[0])
            return f"_add({base}, {index})"
        raise Untranslated(f"line {node.start_point[0] + 1}: the address of '{text_of(inner)}'")

    def as_conditional_expression(self, node: Any) -> str:
        test, first, other = (self.expression(node.child_by_field_name(k))
                              for k in ("condition", "consequence", "alternative"))  # fmt: skip
        return f"({first} if {test} else {other})"

    def as_subscript_expression(self, node: Any) -> str:
        base = self.expression(node.child_by_field_name("argument"))
        inner = node.named_children[-1].named_children
        return f"{base}[{', '.join(self.expression(c) for c in inner)}]"

    def as_cast_expression(self, node: Any) -> str:
        kind = text_of(node.child_by_field_name("type"))
        return self.converted(kind, self.expression(node.child_by_field_name("value")))

    def as_compound_literal_expression(self, node: Any) -> str:
        kind = text_of(node.child_by_field_name("type"))
        inner = [self.expression(c) for c in node.child_by_field_name("value").named_children]
        return self.built(kind, inner, node)

    def as_field_expression(self, node: Any) -> str:
        base = self.expression(node.child_by_field_name("argument"))
        return f"{base}.{text_of(node.child_by_field_name('field'))}"

    def converted(self, kind: str, value: str) -> str:
        """A conversion of a number."""
        if "*" in kind:
            return value
        if WHOLE.search(kind):
            return f"_int({value})"
        if "bool" in kind:
            return f"bool({value})"
        return f"_real({value})" if REALS.search(kind) else value

    def built(self, kind: str, inner: list[str], node: Any) -> str:
        """An object made of arguments."""
        base = kind.rpartition("::")[2].partition("<")[0] if "<" not in kind else kind
        if "vector" in kind:
            if kind.count("vector") and len(inner) == 2 and "{" not in text_of(node):
                return f"[{inner[1]}] * {inner[0]}"
            if len(inner) == 1 and "{" not in text_of(node):
                return f"[0] * {inner[0]}" if "Tensor" not in kind else f"[None] * {inner[0]}"
            return f"[{', '.join(inner)}]"
        if "tuple" in kind or "pair" in kind:
            return f"({', '.join(inner)},)"
        if base == "dim3":
            return f"_Dim3({', '.join(inner)})"
        if base == "Slice":
            return f"slice({', '.join(inner) or 'None'})"
        if base == "TensorOptions":
            return "_Options()" if not inner else f"_Options(_options({inner[0]}))"
        if len(inner) == 1 and ("optional" in kind or base in ("Tensor", "IntArrayRef", "Scalar")):
            return inner[0]
        if len(inner) == 1 and re.search(
            r"\b(u?int\d*_t|int|long|size_t|float|double|bool)\b", kind
        ):
            return self.converted(kind, inner[0])
        if len(inner) == 1 and REALS.fullmatch(base):
            return f"_real({inner[0]})"
        raise Untranslated(f"line {node.start_point[0] + 1}: an object of {kind}")

    def as_call_expression(self, node: Any) -> str:
        function = node.child_by_field_name("function")
        inner = [c for c in node.child_by_field_name("arguments").named_children
                 if c.type != "comment"]  # fmt: skip
        if function.type == "field_expression":
            return self.method(node, function, inner)
        if function.type == "primitive_type":
            return self.converted(text_of(function), self.expression(inner[0]))
        name = text_of(function)
        plain = re.sub(r"<.*>", "", name, flags=re.DOTALL)
        base = plain.rpartition("::")[2]
        space = plain.rpartition("::")[0]
        if base in ("static_cast", "reinterpret_cast", "const_cast"):
            kind = name.partition("<")[2].rpartition(">")[0]
            return self.converted(kind, self.expression(inner[0]))
        if base == "numeric_limits" or "numeric_limits" in name:
            return LIMITS.get(base) or self.unknown(node)
        if base == "__launch__":
            return self.launch(inner)
        given = [self.expression(c) for c in inner]
        if base == "get" and "<" in name:
            return f"{given[0]}[{name.partition('<')[2].rstrip('>')}]"
        if base in ("make_tuple", "tuple", "make_pair"):
            return f"({', '.join(given)},)"
        if base in ("move", "forward", "AT_CUDA_CHECK"):
            return given[0]
        if base == "getCurrentCUDAStream":
            return "None"
        if base in ATOMICS:
            return f"{ATOMICS[base]}({', '.join(given)})"
        if base in self.sources.functions:
            return self.own(base, name, given)
        if space in SPACES:
            return self.of_torch(base, given, node)
        if base.removeprefix("__") in ("ldg",):
            return f"{given[0]}[0]"
        short = base[:-1] if base.endswith("f") and base[:-1] in FUNCTIONS else base
        if space in ("", "std", "c10::cuda::compat") and base in NUMBERS:
            return f"{NUMBERS[base]}({', '.join(given)})"
        if space in ("", "std", "c10::cuda::compat", "::") and short in FUNCTIONS:
            return f"_function({short!r}, {', '.join(given)})"
        if "vector" in plain or base in OBJECTS:
            return self.built(name, given, node)
        return self.unknown(node)

    def unknown(self, node: Any) -> str:
        """A call that nothing here knows."""
        name = text_of(node.child_by_field_name("function"))
        raise Untranslated(f"line {node.start_point[0] + 1}: the call of {name[:60]}")

    def own(self, base: str, name: str, given: list[str]) -> str:
        """A function of the sources; a function of a kernel gets the thread as well."""
        python = self.function(base, len(given))
        chosen = self.chosen[base]
        values = []
        if chosen.values and "<" in name:
            numbers = top_level(name.partition("<")[2].rpartition(">")[0])
            values = [self.value_of(one) for one in numbers[-len(chosen.values) :]]
        takes = [] if not self.takes_thread(base) else ["_at"]
        return f"{python}({', '.join([*takes, *values, *given])})"

    def takes_thread(self, base: str) -> bool:
        """Whether a translated function begins with the thread."""
        return uses_grid(self.chosen[base].node.child_by_field_name("body"))

    def value_of(self, text: str) -> str:
        """A template argument that is a number or a flag."""
        if text in ("true", "false"):
            return text.capitalize()
        if re.fullmatch(r"\d+", text):
            return text
        for scope in reversed(self.frame.scopes):
            if text in scope:
                return scope[text]
        if text in self.sources.constants:
            return self.constant(text)
        raise Untranslated(f"the template argument '{text}'")

    def launch(self, inner: list[Any]) -> str:
        """A kernel's launch, threads one after the other."""
        name = text_of(inner[0]).rpartition("::")[2]
        given = [self.expression(c) for c in inner[2:]]
        kernel = self.function(name, len(given) - 2)
        chosen = self.chosen[name]
        numbers = top_level(text_of(inner[1]).strip('"'))
        values = [self.value_of(v) for v in numbers[-len(chosen.values) :]] if chosen.values else []
        return f"_launch({', '.join([kernel, *given[:2], *values, *given[2:]])})"

    def of_torch(self, base: str, given: list[str], node: Any) -> str:
        """A function of torch by the same name."""
        import torch

        if base in ("device", "dtype"):  # torch::dtype(…).device(…) makes options
            return f"_Options({base}={given[0]})"
        if base in FACTORIES and len(given) > FACTORIES[base]:
            place = FACTORIES[base]
            given = [*given[:place], f"**_options({given[place]})"]
        for space in ("torch", "torch.nn.functional", "torch.special", "torch.linalg"):
            holder: Any = torch
            for part in space.split(".")[1:]:
                holder = getattr(holder, part)
            if hasattr(holder, base):
                return f"{space}.{base}({', '.join(given)})"
        if base.startswith("linalg_") and hasattr(torch.linalg, base[7:]):
            return f"torch.linalg.{base[7:]}({', '.join(given)})"
        if hasattr(torch.ops.aten, base):
            return f"torch.ops.aten.{base}({', '.join(given)})"
        return self.built(base, given, node)

    def method(self, node: Any, function: Any, inner: list[Any]) -> str:
        """A method of a tensor, a vector, an optional value or options."""
        import torch

        base = self.expression(function.child_by_field_name("argument"))
        name = re.sub(r"<.*>", "", text_of(function.child_by_field_name("field")), flags=re.DOTALL)
        given = [self.expression(c) for c in inner]
        if base.startswith("_Options") and name in ("dtype", "device", "requires_grad", "layout"):
            return f"{base}.{name}({', '.join(given)})"
        if name in POINTERS:
            return f"_Pointer.of({base})"
        if name in ACCESSORS or name in ("value_or",):
            return base if name in ACCESSORS else f"({given[0]} if {base} is None else {base})"
        if name == "size":
            return f"{base}.size({given[0]})" if given else f"len({base})"
        if name in METHODS and not given:
            return METHODS[name].format(base).replace("_ON_DEVICE", str(self.on_device))
        if name in ("dtype", "device", "requires_grad", "layout") and given:
            return f"{base}.{name}({', '.join(given)})"
        if name in ("push_back", "emplace_back"):
            return f"{base}.append({given[0]})"
        if name in ("reserve",):
            return "None"
        if name == "index":
            return f"{base}[{index_of(given[0])}]"
        if name == "index_put_":
            return f"_put({base}, {index_of(given[0])}, {', '.join(given[1:])})"
        if name == "toType":
            return f"{base}.to({given[0]})"
        if name in ("to", "zeros", "new_zeros", "new_empty") and given:
            given = [f"**{g}" if g.startswith("_Options") else g for g in given]
        if hasattr(torch.Tensor, name):
            return f"{base}.{name}({', '.join(given)})"
        if hasattr(torch.ops.aten, name):
            return f"torch.ops.aten.{name}({', '.join([base, *given])})"
        raise Untranslated(f"line {node.start_point[0] + 1}: the method .{name}()")


def wraps(text: str) -> bool:
    """Whether a number literal is unsigned and large: Python's products never wrap around."""
    match = re.fullmatch(r"(?i)(0x[0-9a-f]+|\d+)u", text)
    if match is None:
        return False
    return int(match[1], 16 if "x" in match[1].lower() else 10) > LARGE


def is_truth(node: Any) -> bool:
    """Whether an expression is true or false, no number."""
    while node.type == "parenthesized_expression":
        node = node.named_children[-1]
    if node.type in ("binary_expression", "unary_expression"):
        return text_of(node.child_by_field_name("operator")) in TRUTHS
    return node.type in ("true", "false", "call_expression")


def index_of(text: str) -> str:
    """The inside of a list as an index."""
    return f"({text[1:-1]},)" if text.startswith("[") else text
