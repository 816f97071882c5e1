"""Which format a folder's weights are in, and its reader."""

from __future__ import annotations

from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.train.formats import compressed_tensors, msmodelslim
from joymigrate.run.train.formats.tensors import TensorFolder, TensorSource, read_json

# `format`, `scheme` (w8a8, w4a16; w8a8 static where inputs have fixed scales), and `linear(name)`:
# None where a weight is plain.
QuantisedReader = compressed_tensors.CompressedTensorsReader | msmodelslim.MsModelSlimReader


def open_quantised(folder: Path, source: TensorSource | None = None) -> QuantisedReader | None:
    """The reader of a folder's quantised weights, None where they are plain.

    `source` has the tensors where somebody has opened them already. Raises `JoyError` for formats
    that are not read: quantised weights must never be taken for plain ones.
    """
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    said = config.get("quantization_config") or config.get("compression_config")
    described = folder / msmodelslim.DESCRIPTION
    if not said and not described.is_file():
        return None
    tensors = source if source is not None else TensorFolder(folder)
    if described.is_file():
        return msmodelslim.MsModelSlimReader(tensors, read_json(described), str(described))
    if not isinstance(said, dict):
        raise JoyError("quantization_config is not an object", where=str(folder / "config.json"))
    method = str(said.get("quant_method") or "unnamed")
    if method != compressed_tensors.METHOD:
        raise JoyError(
            f"the weights are quantised by '{method}', which is not read",
            where=str(folder / "config.json"),
            help="compressed-tensors and msmodelslim are: joymigrate quantise the plain model",
        )
    return compressed_tensors.CompressedTensorsReader(tensors, said, str(folder / "config.json"))
