"""What a chip does with one recorded operator: its list, aliases, overload and dtypes together."""

from __future__ import annotations

from dataclasses import replace

from joymigrate.chips import libraries
from joymigrate.language import Text
from joymigrate.profile import aliases
from joymigrate.profile.aliases import Alias
from joymigrate.profile.kernel_names import fused_operators
from joymigrate.profile.measurements import Measured
from joymigrate.profile.oplist.aten import AtenOp
from joymigrate.profile.oplist.lists import OpList, is_out
from joymigrate.profile.oplist.resolve import IMPLICIT
from joymigrate.profile.support import OperatorVerdict, Support, SupportStatus, split_name
from joymigrate.profile.table import EMPTY, CallSignature, tensor_dtypes

OLD = "a name that this torch does not have; judged by the operators inside it"
COMPILED = "a kernel that a compiler generated for the source platform"
GENERATED = "made by torch's compiler of {ops}, which the chip runs"
UNJUDGED = "; by its name: dtypes and quantised formats are not judged"
ALIAS = "{name} is one backend's name of {target}"
FUSED = "{target} of the chip computes it"
MADE = "made of {name}"
HIDDEN = "torch makes it of other operators, which the recording does not show"
SPARSE, QUANTISED, NESTED = "sparse", "quantised", "nested"
IN_LAYOUT = "the chip has a kernel for {layout} tensors"
NO_LAYOUT = "nothing says what its kernel does with {layout} tensors"
RARE = "no document says whether its kernel takes {dtype}"
# Types that every device of torch is expected to know; of any other one a document has to speak.
COMMON = frozenset(
    ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
     "bool", "complex64", "complex128")
)  # fmt: skip


class SupportJudge:
    """One chip in one version. `overloads`: whether the recording names overloads."""

    def __init__(self, oplist: OpList, *, overloads: bool) -> None:
        self.oplist = oplist
        self.overloads = overloads
        own = oplist.aliases
        self.aliases = aliases.load(own)
        self.libraries = libraries.load(oplist.path.parent / "libraries.yaml")
        self.bases = frozenset(oplist.resolver.table.bases)
        self.measured = Measured(oplist)
        self.kept: dict[tuple[str, CallSignature, bool], OperatorVerdict] = {}

    def judge(
        self, name: str, signature: CallSignature, *, by_program: bool = False
    ) -> OperatorVerdict:
        """The verdict on one call. `by_program`: the program itself calls it, not torch."""
        key = (name, signature, by_program)
        found = self.kept.get(key)
        if found is None:
            decided = self.decide(name, signature, by_program=by_program)
            found = self.kept[key] = self.measured.apply(decided, signature)
        return found

    def stands_for_another(self, name: str) -> bool:
        """Whether torch calls something else on the chip, where it is torch that calls."""
        alias = self.aliases.of(*split_name(name)[:2])
        return alias is not None and bool(alias.to)

    def decide(
        self, name: str, signature: CallSignature, *, by_program: bool = False
    ) -> OperatorVerdict:
        """Look the operator up, then behind its alias, then at its dtypes."""
        if name.startswith("triton_"):
            return OperatorVerdict(name, "", self.generated(name), opens=True)
        namespace, base, overload = split_name(name, "" if self.overloads else None)
        bare = f"{namespace}::{base}"
        support = self.look_up(bare, overload, signature)
        laid_out = self.in_layout(bare, overload, support, signature)
        if laid_out is not None:
            return OperatorVerdict(bare, overload or "", laid_out, opens=False)
        alias = self.aliases.of(namespace, base)
        if by_program and alias is not None and alias.to:
            alias = None  # nobody calls another operator in its place
        # The chip's own kernel for a backend's name is better than what stands behind the name.
        if alias is not None and support.status is not SupportStatus.NATIVE:
            support = self.behind(bare, alias)
        elif support.status is SupportStatus.COMPOSITE:
            support = self.left_to_the_chip(bare, support)
        elif support.status is SupportStatus.UNKNOWN and namespace == "aten":
            support = self.own(base, overload) or support
        if support.status is SupportStatus.UNKNOWN and namespace != "aten":
            support = self.counterpart(bare) or support
        if support.status is SupportStatus.UNKNOWN:
            is_torch = namespace == "aten"
            note = OLD if is_torch else support.note
            opened = replace(support, note=note)
            return OperatorVerdict(bare, overload or "", opened, opens=True, silent=is_torch)
        # One backend's name may come with inputs of that backend (a state, a seed).
        own = self.aliases.own_inputs.get(base, ())
        if helps(bare, support):
            return OperatorVerdict(bare, overload or "", support, opens=False)
        support = self.with_dtypes(support, signature, only_first=alias is not None, own=own)
        opens = support.status is SupportStatus.COMPOSITE and alias is None
        return OperatorVerdict(bare, overload or "", support, opens=opens)

    def look_up(self, bare: str, overload: str | None, signature: CallSignature) -> Support:
        """The list's statement; an overload that was not recorded is narrowed by the inputs."""
        if overload is not None:
            return self.oplist.status(bare, overload)
        table = self.oplist.resolver.table
        ops = [table.ops[n] for n in table.bases.get(bare.removeprefix("aten::"), ())]
        fitting = [f"aten::{op.name}" for op in ops if not is_out(op.name) and fits(op, signature)]
        if not bare.startswith("aten::") or not fitting:
            return self.oplist.status(bare)
        return self.oplist.best(bare, fitting)

    def in_layout(
        self, bare: str, overload: str | None, support: Support, signature: CallSignature
    ) -> Support | None:
        """What the chip does with sparse or quantised tensors; None where nothing is special."""
        resolver = self.oplist.resolver
        special = layout_of(signature)
        if not special or support.note == IMPLICIT:  # its parts are recorded
            return None
        names = [f"aten::{n}" for n in resolver.table.bases.get(bare.removeprefix("aten::"), ())]
        if overload is not None:
            names = [f"{bare}.{overload}" if overload else bare]
        if any(resolver.in_layout(name, special) for name in names):
            note = Text(IN_LAYOUT, layout=special)
            return Support(SupportStatus.NATIVE, note=note, source=resolver.source)
        if special not in (SPARSE, NESTED) or not support.supported:
            return None
        return replace(support, status=SupportStatus.UNKNOWN, note=Text(NO_LAYOUT, layout=special))

    def behind(self, bare: str, alias: Alias) -> Support:
        """What the chip does with the operator that stands behind a name."""
        if alias.status is not None:
            note = alias.note.format(backend=self.oplist.chip.backend)
            source = alias.source or "rules/common/ops/aliases.yaml"
            return Support(alias.status, dtypes=alias.dtypes, note=note, source=source)
        target = alias.target(self.oplist.version)
        found = self.left_to_the_chip(target, self.oplist.status(target))
        if alias.fused and found.status is SupportStatus.NATIVE:
            return replace(found, status=SupportStatus.FUSED, note=FUSED.format(target=target))
        said = (ALIAS.format(name=bare, target=target), alias.note, found.note)
        return replace(found, note="; ".join(part for part in said if part))

    def counterpart(self, bare: str) -> Support | None:
        """What computes another library's operator on the chip; None where nobody has looked."""
        known = self.libraries.of(bare)
        if known is None:
            return None
        beside = Text("; needs {package}", package=known.package) if known.package else ""
        if known.own:
            note = Text("{package} registers it for the chip", package=known.package)
            return Support(
                SupportStatus.FUSED,
                note=Text.join("; ", [note, known.note] if known.note else [note]),
                source=known.source,
                package=known.package,
            )
        found = self.oplist.status(known.to)
        if not found.status.supported:
            note = Text("{target} would compute it, which this version lacks", target=known.to)
            return Support(SupportStatus.MISSING, note=note, source=known.source or found.source)
        note = Text(FUSED, target=known.to) + Text(UNJUDGED) + beside
        said = [note, known.note] if known.note else [note]
        return Support(
            SupportStatus.FUSED, note=Text.join("; ", said), source=known.source or found.source,
            package=known.package,
        )  # fmt: skip

    def generated(self, name: str) -> Support:
        """A kernel of torch's compiler: as good as the operators that its name lists."""
        bases = fused_operators(name, self.bases)
        if not bases:
            return Support(SupportStatus.UNKNOWN, note=COMPILED)
        worst = [
            (base, status)
            for base in dict.fromkeys(bases)
            if not (status := self.judge(f"aten::{base}", EMPTY).support.status).supported
        ]
        if not worst:
            return Support(SupportStatus.COMPOSITE, note=Text(GENERATED, ops=", ".join(bases)))
        base, status = max(worst, key=lambda item: item[1].rank)
        return Support(status, note=Text("{note}: made of {name}", note=COMPILED, name=base))

    def left_to_the_chip(self, name: str, support: Support) -> Support:
        """Torch makes `convolution` out of `convolution_overrideable`, which a chip must bring."""
        needed, resolver = f"{name}_overrideable", self.oplist.resolver
        found = resolver.support(needed)
        if support.status is not SupportStatus.COMPOSITE or found is None:
            return support
        if found.status in (SupportStatus.NATIVE, SupportStatus.FUSED):
            return support
        source = f"not in {resolver.source}" if resolver.source else ""
        return Support(resolver.absent, note=MADE.format(name=needed), source=source)

    def own(self, base: str, overload: str | None) -> Support | None:
        """The chip's own operator, which old releases put into torch's namespace."""
        for namespace in self.oplist.entries.namespaces:
            found = self.oplist.status(f"{namespace}::{base}", overload)
            if found.status is not SupportStatus.UNKNOWN:
                return found
        return None

    def inner(self, verdict: OperatorVerdict) -> OperatorVerdict:
        """The verdict where the recording does not show what an operator is made of.

        Torch writes some operators as a call of their out variant, or of one with a leading
        underscore; what the chip does with that one is what happens.
        """
        support, base = verdict.support, verdict.op.removeprefix("aten::")
        if support.status is not SupportStatus.COMPOSITE or not verdict.op.startswith("aten::"):
            return verdict
        op = self.oplist.resolver.table.ops.get(verdict.name.removeprefix("aten::"))
        if op is None or op.composite != "explicit" or op.generated:
            return verdict
        overload = verdict.overload
        outs = (f"{overload}_out" if overload else "out", "out", "grad_input")
        for name in (*(f"aten::{base}.{out}" for out in outs), f"aten::_{base}"):
            found = self.oplist.resolver.support(name)
            if found is not None and found.status in (
                SupportStatus.CPU_FALLBACK,
                SupportStatus.MISSING,
            ):
                said = "; ".join(part for part in (MADE.format(name=name), found.note) if part)
                return replace(verdict, support=replace(found, note=said), opens=False)
        return verdict

    def with_dtypes(
        self,
        support: Support,
        signature: CallSignature,
        *,
        only_first: bool = False,
        own: tuple[int, ...] = (),
    ) -> Support:
        """Missing where a tensor has a dtype that no kernel of the operator takes."""
        if not support.supported:
            return support
        if not support.dtypes:
            return silent_about(support, signature)
        for position, dtype in tensor_dtypes(signature):
            if only_first and position:
                break
            if position in own:
                continue
            first = self.oplist.resolver.first_dtypes(support.kernels) if position == 0 else None
            known = support.dtypes if not first else [d for d in support.dtypes if d in first]
            if known and dtype not in known:
                refused = replace(support, dtypes=tuple(known))
                return self.oplist.with_dtype(refused, dtype)
        return support


def hide_composite(verdict: OperatorVerdict) -> OperatorVerdict:
    """An operator made of others whose kernels no recorded operator launched."""
    said = replace(verdict.support, status=SupportStatus.UNKNOWN, note=Text(HIDDEN))
    return replace(verdict, support=said)


def layout_of(signature: CallSignature) -> str:
    """`sparse`, `nested`, `quantised`, or "" for tensors with a place for each element."""
    dtypes = [dtype for dtype in signature.dtypes if dtype]
    for start, word in (("sparse", SPARSE), ("jagged ", NESTED)):
        if any(dtype.startswith(start) and " " in dtype for dtype in dtypes):
            return word
    return QUANTISED if any(dtype.startswith(("qint", "quint")) for dtype in dtypes) else ""


def silent_about(support: Support, signature: CallSignature) -> Support:
    """Unknown where a kernel without documented dtypes meets a rare one."""
    rare = next((d for _, d in tensor_dtypes(signature) if d not in COMMON), "")
    if not rare or support.status is SupportStatus.COMPOSITE:
        return support
    return replace(support, status=SupportStatus.UNKNOWN, note=Text(RARE, dtype=rare))


def helps(bare: str, support: Support) -> bool:
    """Whether the known kernels are only helpers inside of a Fourier transform.

    The kernels that were read from its sources are those of its matrix products; their dtypes are
    not those of the operator.
    """
    return "_fft_" in bare and not any("fft" in kernel.lower() for kernel in support.kernels)


def fits(op: AtenOp, signature: CallSignature) -> bool:
    """Whether an overload can have been called with these inputs."""
    if not signature.kinds:
        return True
    if len(op.arguments) != len(signature.kinds):
        return False
    for argument, kind in zip(op.arguments, signature.kinds, strict=True):
        if kind == "tensor" and argument.kind == "value":
            return False
        if kind == "tensors" and argument.kind == "tensor":
            return False
        if kind == "value" and argument.kind == "tensor":
            return False
    return True
