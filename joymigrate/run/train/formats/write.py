"""Writes a quantised model folder: shard by shard, and all of it or nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError
from joymigrate.run.train.formats import compressed_tensors, msmodelslim
from joymigrate.run.train.formats.stored_linears import Linear
from joymigrate.run.train.formats.tensors import read_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NAMES = (compressed_tensors.METHOD, msmodelslim.NAME)
SHARD_BYTES = 2 << 30
STEMS = {compressed_tensors.METHOD: "model", msmodelslim.NAME: "quant_model_weights"}
# What of the plain model belongs to the quantised one as well: tokenizer, templates, settings.
KEPT = (".json", ".jinja", ".txt", ".model", ".py", ".tiktoken")
KEPT_NAMES = ("LICENSE", "LICENSE.md", "NOTICE")


class FormatWriter:
    """A context: `put` tensors and linears in any order, then `finish`. Until then nothing lies
    under `out`; on an error nothing is left."""

    def __init__(
        self,
        out: Path,
        format: str,
        dtype: torch.dtype,
        *,
        shard_bytes: int = SHARD_BYTES,
        replace: bool = False,
    ) -> None:
        if format not in NAMES:
            raise JoyError(f"there is no format '{format}'", help=f"one of {', '.join(NAMES)}")
        self.out = out
        self.format = format
        self.dtype = dtype
        self.shard_bytes = shard_bytes
        self.replace = replace
        self.pending: dict[str, Tensor] = {}
        self.pending_bytes = 0
        self.shards: list[dict[str, int]] = []  # bytes by name
        self.kinds: dict[str, str] = {}  # msmodelslim's word for every tensor
        self.plain: list[str] = []  # linears that stay as they are

    def __enter__(self) -> FormatWriter:
        vacant(self.out, replace=self.replace)
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            made = tempfile.mkdtemp(prefix=f".{self.out.name}.", dir=self.out.parent)
        except OSError as error:
            raise JoyError(f"cannot write: {error.strerror}", where=str(self.out)) from None
        self.folder = Path(made)
        return self

    def __exit__(self, *raised: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # moved away when all went well

    def put(self, name: str, tensor: Tensor, kind: str = msmodelslim.FLOAT) -> None:
        """One tensor as it is."""
        tensor = tensor.detach().cpu().contiguous()
        size = tensor.numel() * tensor.element_size()
        if self.pending and self.pending_bytes + size > self.shard_bytes:
            self.flush()
        self.pending[name] = tensor
        self.pending_bytes += size
        self.kinds[name] = kind

    def put_linear(self, name: str, linear: Linear) -> None:
        """A quantised linear."""
        if self.format == msmodelslim.NAME:
            for key, tensor, kind in msmodelslim.tensors(name, linear, self.dtype):
                self.put(key, tensor, kind)
            return
        for key, tensor in compressed_tensors.tensors(name, linear, self.dtype):
            self.put(key, tensor)

    def flush(self) -> None:
        """Write the pending tensors as a shard."""
        from safetensors.torch import save_file

        path = self.folder / f"{len(self.shards)}.part"
        # Tensors that share memory are refused by safetensors; a copy shares with nobody.
        seen: set[int] = set()
        apart: dict[str, Tensor] = {}
        for name, tensor in self.pending.items():
            place = tensor.untyped_storage().data_ptr()
            apart[name] = tensor.clone() if place in seen else tensor
            seen.add(place)
        guard_files(lambda: save_file(apart, path, metadata={"format": "pt"}), self.out)
        self.shards.append({n: t.numel() * t.element_size() for n, t in self.pending.items()})
        self.pending, self.pending_bytes = {}, 0

    def finish(self, model: Path, scheme: str, *, static: bool = False, group: int = 0) -> None:
        """Name the shards, write index and settings, and move everything to its place."""
        if self.pending:
            self.flush()
        config = read_json(model / "config.json")
        for name in ("quantization_config", "compression_config"):
            config.pop(name, None)
        keep(model, self.folder)
        if self.format == msmodelslim.NAME:
            document = msmodelslim.description(self.kinds, static=static)
            write_json(self.folder / msmodelslim.DESCRIPTION, document)
        else:
            config["quantization_config"] = compressed_tensors.configuration(
                scheme, self.plain, static=static, group=group
            )
        write_json(self.folder / "config.json", config)
        self.name_shards()
        guard_files(self.settle, self.out)

    def name_shards(self) -> None:
        """model.safetensors, or numbered shards with an index; msmodelslim always has an index."""
        stem, count = STEMS[self.format], len(self.shards)
        if count == 1 and self.format != msmodelslim.NAME:
            os.replace(self.folder / "0.part", self.folder / f"{stem}.safetensors")
            return
        homes: dict[str, str] = {}
        for i, shard in enumerate(self.shards):
            name = f"{stem}-{i + 1:05d}-of-{count:05d}.safetensors"
            os.replace(self.folder / f"{i}.part", self.folder / name)
            homes |= dict.fromkeys(shard, name)
        total = sum(sum(shard.values()) for shard in self.shards)
        index = {"metadata": {"total_size": total}, "weight_map": homes}
        write_json(self.folder / f"{stem}.safetensors.index.json", index)

    def settle(self) -> None:
        """Move the folder to its place, an old one out of the way first."""
        os.chmod(self.folder, 0o755)
        if self.out.exists():
            aside = Path(tempfile.mkdtemp(prefix=f".{self.out.name}.old.", dir=self.out.parent))
            os.replace(self.out, aside / "old")
            os.replace(self.folder, self.out)
            shutil.rmtree(aside, ignore_errors=True)
            return
        os.replace(self.folder, self.out)


def vacant(out: Path, *, replace: bool) -> None:
    """Refuse a place that has something else."""
    if not out.exists():
        return
    if not out.is_dir():
        raise JoyError("the output is a file", where=str(out), help="name a folder with -o")
    if any(out.iterdir()) and not replace:
        raise JoyError(
            "the output folder is not empty", where=str(out), help="another -o, or --force"
        )
    if any(out.iterdir()) and not (out / "config.json").is_file():
        raise JoyError("this folder is no model and is not replaced", where=str(out))


def keep(model: Path, folder: Path) -> None:
    """Copy what belongs to both: tokenizer, templates, settings of generation."""
    for path in sorted(model.iterdir()):
        weights = path.name.endswith((".safetensors.index.json", ".bin.index.json"))
        ours = path.name in ("config.json", msmodelslim.DESCRIPTION)
        wanted = path.suffix in KEPT or path.name in KEPT_NAMES
        if path.is_file() and wanted and not weights and not ours:
            guard_files(lambda path=path: shutil.copyfile(path, folder / path.name), folder)  # type: ignore[misc]


def write_json(path: Path, content: Any) -> None:
    """A JSON file."""
    text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    guard_files(lambda: path.write_text(text, encoding="utf-8"), path)


def guard_files(act: Callable[[], object], where: Path) -> None:
    """Do something with files; what the system refuses is the user's to mend."""
    try:
        act()
    except OSError as error:
        raise JoyError(f"cannot write: {error.strerror or error}", where=str(where)) from None
