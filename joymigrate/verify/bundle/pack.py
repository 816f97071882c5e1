"""One tar of a bundle for shipping, and the way back."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from joymigrate.errors import JoyError

try:
    from lzma import LZMAError
except ImportError:  # a Python that was built without it opens no such archive
    LZMAError = EOFError  # type: ignore[misc,assignment]

# Floats hardly shrink: an archive that grows by more than this, beyond what is always allowed, is
# none of ours. Our own choice.
MOST_GROWTH, ALWAYS = 20, 1 << 26
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


def too_large(path: Path, size: int, room: int) -> JoyError:
    """The error for an archive that unpacks to more than it should."""
    return JoyError(
        f"the archive unpacks to {size >> 20} MiB or more: it has {path.stat().st_size >> 10} KiB, "
        f"and {room >> 20} MiB are free",
        where=str(path),
        help="`joymigrate verify pack` makes archives without compression; unpack it by hand if it "
        "is yours, and name the folder",
    )


def not_unpacked(path: Path, error: OSError) -> JoyError:
    """The error for what the system refuses."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return JoyError(
        f"cannot unpack: {error.strerror}",
        where=str(path),
        help="make room where temporary files lie, or set TMPDIR to another place"
        if full
        else "the archive has to be readable, and the place of temporary files (TMPDIR) writable",
    )


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member without its owner."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(path: Path) -> Path:
    """A temporary folder with the tar's files, removed when this process ends."""
    stat = path.stat()
    key = (str(path.resolve()), stat.st_mtime_ns, stat.st_size)
    if key in _unpacked:
        return _unpacked[key]
    folder = Path(tempfile.mkdtemp(prefix="joymigrate-bundle-"))
    room = shutil.disk_usage(folder).free
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with tarfile.open(path) as tar:
            size = 0
            for member in tar:  # one by one: the list itself may be without end
                size += member.size
                if size > room or size > MOST_GROWTH * stat.st_size + ALWAYS:
                    raise too_large(path, size, room)
                parts = PurePosixPath(member.name).parts
                if (
                    ".." in parts
                    or member.name.startswith("/")
                    or not (member.isfile() or member.isdir())
                    or member.issparse()
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
    except (tarfile.TarError, EOFError, zlib.error, LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # gzip's and bzip2's have none
            raise not_unpacked(path, error) from None
        said = str(error).splitlines()[0].rstrip(":")
        raise JoyError(
            f"not a bundle of joymigrate, or a damaged one: {said}",
            where=str(path),
            help="a bundle is a folder, or the tar that `joymigrate verify pack` makes",
        ) from None
    _unpacked[key] = folder
    return folder
