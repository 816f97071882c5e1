"""One tar of a bundle for shipping, and the way back."""

from __future__ import annotations

import atexit
import os
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from joymigrate.errors import JoyError

_unpacked: dict[tuple[str, int, int], Path] = {}


def pack(folder: Path, output: Path) -> int:
    """Write the bundle as a tar without compression (floats hardly shrink); its size in bytes."""
    beside = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with tarfile.open(beside, "w") as tar:
            for file in sorted(folder.rglob("*")):
                if file.is_file() and not file.name.endswith(".part"):
                    tar.add(file, file.relative_to(folder).as_posix(), filter=anonymous)
        os.replace(beside, output)
    except OSError as error:
        raise JoyError(f"cannot write: {error.strerror}", where=str(output)) from None
    finally:
        beside.unlink(missing_ok=True)
    return output.stat().st_size


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member without its owner."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpacked(path: Path) -> Path:
    """A temporary folder with the tar's files, removed when this process ends."""
    stat = path.stat()
    key = (str(path.resolve()), stat.st_mtime_ns, stat.st_size)
    if key in _unpacked:
        return _unpacked[key]
    folder = Path(tempfile.mkdtemp(prefix="joymigrate-bundle-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with tarfile.open(path) as tar:
            for member in tar.getmembers():
                parts = PurePosixPath(member.name).parts
                if (
                    ".." in parts
                    or member.name.startswith("/")
                    or not (member.isfile() or member.isdir())
                ):
                    raise JoyError(
                        f"not a bundle of joymigrate: the archive holds '{member.name}'",
                        where=str(path),
                        help="`joymigrate verify pack` makes archives of plain files",
                    )
                source = tar.extractfile(member)
                if source is None:
                    continue
                target = folder.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
    except (tarfile.TarError, EOFError) as error:
        raise JoyError(
            f"not a bundle of joymigrate, or a damaged one: {str(error).splitlines()[0]}",
            where=str(path),
            help="a bundle is a folder, or the tar that `joymigrate verify pack` makes",
        ) from None
    _unpacked[key] = folder
    return folder
