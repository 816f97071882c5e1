"""A ranking model opened from disk: a torch.export program, a package, or a folder of `train`."""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError
from joymigrate.files import parse_object
from joymigrate.run.serve.ranking import cut, graph, texts
from joymigrate.run.serve.ranking.call_convention import Calling, calling_of
from joymigrate.run.serve.ranking.signature import FILE, Dimensions, ModelSignature, build
from joymigrate.run.serve.ranking.split import Split
from joymigrate.run.serve.ranking.tensors import as_typed, outputs_of, writable
from joymigrate.run.serve.ranking.users import UserSide

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from joymigrate.run.serve.ranking.remote import Shards
    from joymigrate.run.serve.ranking.request import Arrays

log = logging.getLogger("joymigrate.serve")
PROGRAM, PACKAGE = "program", "package"
Run = Callable[..., Any]
FOLDER_FILES = ("model.pt2",)
WHOLE_FILE = "model.pt2"  # of compiled code, in its folder


@dataclass(slots=True)
class RankingProgram:
    """A model that runs. `state` are its weights by name, shared by whatever runs it."""

    name: str
    path: Path
    signature: ModelSignature
    eager: Run
    device: str = "cpu"
    digest: str = ""
    exported: ExportedProgram | None = None
    plain: Any = None  # the graph on the CPU, where the device is another
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    compiled: Run | None = None
    split: Split | None = None  # where rows come from that are not here
    parts: tuple[str, ...] = ("",)  # what is compiled; "": the whole
    calling: Calling | None = None  # how compiled code of the whole takes its inputs
    users: UserSide | None = None

    def run(self, arrays: Arrays, chosen: Run | None = None) -> list[torch.Tensor]:
        """Outputs on the CPU, in the signature's order. `chosen`: instead of the eager model."""
        import torch

        inputs = {
            one.name: as_typed(torch.from_numpy(writable(arrays[one.name])), one.dtype)
            for one in self.signature.inputs
        }
        with torch.inference_mode():
            if self.split is not None:
                inputs = self.split.prepare(inputs)
            inputs = {name: tensor.to(self.device) for name, tensor in inputs.items()}
            if chosen is not None and self.calling is not None and self.parts == ("",):
                return outputs_of(self.calling.call(chosen, inputs))
            return outputs_of((chosen or self.eager)(**inputs))


def kind_of(path: Path) -> str | None:
    """PROGRAM or PACKAGE for an archive of torch.export; None for anything else."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any("/data/aotinductor/" in name for name in names):
        return PACKAGE
    return PROGRAM if any(name.endswith("/models/model.json") for name in names) else None


def recognise(path: Path) -> bool:
    """Whether this is a model to rank with: an archive, or a folder that holds one or a DeepFM."""
    if path.is_dir():
        return any((path / name).is_file() for name in FOLDER_FILES) or is_deepfm(path)
    return kind_of(path) is not None


def is_deepfm(folder: Path) -> bool:
    """Whether `train export` wrote a click model there."""
    try:
        return bool(json.loads((folder / "config.json").read_text())["model_type"] == "deepfm")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load(path: Path, device: str = "cpu") -> RankingProgram:
    """Open a model. Raises `JoyError` for what is none, or lacks its description."""
    if path.is_dir():
        if is_deepfm(path):
            return from_exported(export_deepfm(path), path, None, device, path.name)
        inside = next((path / name for name in FOLDER_FILES if (path / name).is_file()), None)
        if inside is None:
            raise JoyError("no ranking model in this folder", where=str(path), help=HELP)
        return load(inside, device)
    kind = kind_of(path)
    if kind is None:
        raise JoyError("this is no ranking model", where=str(path), help=HELP)
    return open_package(path, device) if kind == PACKAGE else open_program(path, device)


HELP = "a torch.export program (.pt2), an AOTInductor package (.pt2), or a folder of train export"


def open_program(path: Path, device: str) -> RankingProgram:
    """A torch.export program; its description lies inside or beside it."""
    import torch

    extra: dict[str, Any] = {FILE: ""}
    try:
        exported = torch.export.load(path, extra_files=extra)
    except Exception as error:
        raise JoyError(
            f"torch {torch.__version__} cannot load this program: {first_line(error)}",
            where=str(path), help="export it with this version of torch",
        ) from None  # fmt: skip
    told = beside(path) or (parse_object(extra[FILE], f"{path}:{FILE}") if extra[FILE] else None)
    return from_exported(exported, path, told, device, path.stem)


def from_exported(
    exported: ExportedProgram, path: Path, told: Mapping[str, Any] | None, device: str, name: str
) -> RankingProgram:
    """A program ready to run on the device."""
    from torch.export.passes import move_to_device_pass

    ins, outs = graph.dimensions(exported)
    signature = build(ins, outs, told, graph.bounds(exported), str(path))
    texts.check(signature, str(path))
    plain = None
    if device != "cpu":
        plain = exported.module()
        exported = move_to_device_pass(exported, device)
    calling = calling_of(exported.call_spec.in_spec, [one.name for one in ins], str(path))
    eager: Any = exported.module()
    if not calling.plain:
        eager = cut.extract(eager, cut.results(eager), {}).run
    state = dict(eager.state_dict(keep_vars=True))
    for tensor in state.values():
        tensor.requires_grad_(False)
    digest = digest_of(exported, state)
    return RankingProgram(
        name, path, signature, eager, device, digest, exported, plain, state, calling=calling
    )


def digest_of(exported: ExportedProgram, state: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of the graph and of the weights' bytes."""
    import torch

    whole = hashlib.sha256(exported.graph_module.code.encode())
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        whole.update(tensor.flatten().view(torch.uint8).numpy().data)
    return whole.hexdigest()


def exported_of(path: Path, device: str, part: str = "") -> ExportedProgram:
    """The program of a path, or a part of it, as it is compiled."""
    from torch.export.passes import move_to_device_pass

    found = load(path, "cpu" if part else device)
    if found.exported is None:
        raise JoyError("there is no program to compile", where=str(path))
    if not part:
        return found.exported
    made = cut.export_part(found.exported, found.signature, part)
    return made if device == "cpu" else move_to_device_pass(made, device)


def take_tables_out(program: RankingProgram, shards: Shards, lost: str) -> None:
    """Leave the embedding tables to sparse shards. Raises `JoyError`."""
    if program.exported is None:
        raise JoyError("a compiled package cannot be cut", where=str(program.path),
                       help="serve the torch.export program")  # fmt: skip
    here: Any = program.eager
    ids = cut.cut_sparse(program.plain or here)
    made = cut.cut_sparse(here)
    joined = replace(ids, dense=made.dense)
    program.split = Split(joined, program.state, shards, lost)
    program.eager = made.dense.run
    program.state = {name: tensor for name, tensor in program.state.items()
                     if name not in joined.rows}  # fmt: skip
    program.parts = (cut.DENSE,)


def open_package(path: Path, device: str) -> RankingProgram:
    """An AOTInductor package: it has no shapes, so its description has all of them."""
    import torch

    told = beside(path)
    if told is None or "dimensions" not in told:
        raise JoyError(
            "an AOTInductor package does not say what goes in",
            where=str(path),
            help=f"write {path.stem}.{FILE} beside it, with `dimensions` "
            "(docs/how-to/serve-ranking.md)",
        )
    try:
        compiled = torch._inductor.aoti_load_package(str(path))
    except Exception as error:
        raise JoyError(f"torch {torch.__version__} cannot load this package: {first_line(error)}",
                       where=str(path), help="compile it with this torch, on such a machine",
                       ) from None  # fmt: skip
    ins, outs = (read_dimensions(told["dimensions"], side, path) for side in ("inputs", "outputs"))
    signature = build(ins, outs, told, {}, str(path))
    texts.check(signature, str(path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    spec = torch.utils._pytree.treespec_loads(compiled.loader.get_call_spec()[0])
    calling = calling_of(spec, [one.name for one in ins], str(path))

    def run(**inputs: Any) -> Any:
        return calling.call(compiled, inputs)

    return RankingProgram(path.stem, path, signature, run, device, digest)


def read_dimensions(table: Any, side: str, path: Path) -> list[Dimensions]:
    """`dimensions: {inputs: {name: [dtype, size or "name", …]}, outputs: {…}}`."""
    try:
        return [Dimensions(name, row[0], tuple(row[1:])) for name, row in table[side].items()]
    except (KeyError, TypeError, AttributeError, IndexError):
        raise JoyError(f"dimensions.{side} is a mapping of lists: name: [dtype, sizes…]",
                       where=str(path)) from None  # fmt: skip


def beside(path: Path) -> dict[str, Any] | None:
    """The description that lies beside the model, if any."""
    for place in (path.with_name(f"{path.stem}.{FILE}"), path.with_name(FILE)):
        if place.is_file():
            return parse_object(place.read_bytes(), str(place))
    return None


def export_deepfm(folder: Path) -> ExportedProgram:
    """The click model that `train export` wrote, as a program over free numbers of candidates."""
    import torch
    from torch.export import Dim

    from joymigrate.run.train.tasks.ctr import SIZES, deepfm, read_config

    sizes = {**SIZES, **read_config(folder)}
    model = deepfm(sizes).eval()
    from safetensors.torch import load_model

    load_model(model, str(folder / "model.safetensors"))
    count = Dim("candidates")
    given = {
        "categories_BF": torch.zeros(4, sizes["categories"], dtype=torch.long),
        "numbers_BG": torch.zeros(4, sizes["numbers"]),
    }
    exported = torch.export.export(
        model, (), kwargs=given, dynamic_shapes={name: {0: count} for name in given}
    )
    return exported


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def keep_users(program: RankingProgram, room: int) -> None:
    """Compute the user's side apart, and keep `room` bytes of it. Raises `JoyError`."""
    if program.exported is None:
        raise JoyError("a compiled package cannot be cut", where=str(program.path),
                       help="serve the torch.export program")  # fmt: skip
    eager: Any = program.eager
    made = cut.cut_users(eager, program.signature)
    program.users = UserSide(made, program.signature, program.device, room)
    program.parts = (cut.USERS, cut.CANDIDATES)


def share(program: RankingProgram, compiled: Any) -> None:
    """Let compiled code read the program's own weights: what changes them changes both."""
    names = set(compiled.get_constant_fqns())
    weights = {name: tensor for name, tensor in program.state.items() if name in names}
    if weights:
        compiled.load_constants(weights, check_full_update=False, user_managed=True)
