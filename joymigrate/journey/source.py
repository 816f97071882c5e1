"""The program before somebody ported it by hand: a folder, a commit, or this very project where
its CUDA program is rewritten in memory."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path, PurePosixPath

from joymigrate.errors import JoyError
from joymigrate.journey import original
from joymigrate.journey.model import Origin
from joymigrate.journey.provenance import git
from joymigrate.journey.tree import CODE, SKIPPED, snapshot, total

WHERE = (
    "name it with --origin: its folder, or a commit of this repository. Two programs in one "
    "project: --baseline-entry 'python train_cuda.py' beside the entry of the ported one"
)


def find_origin(project: Path, given: str, scratch: Path) -> Origin:
    """The origin that was given; else the commit that the work tree differs from, else the project
    itself. A commit is laid into `scratch`."""
    if given and (folder := Path(given)).is_dir():
        return Origin(folder.resolve(), given, total(snapshot(folder.resolve())))
    commit = git(project, "rev-parse", "--verify", "--quiet", f"{given or 'HEAD'}^{{commit}}")
    if commit is None and given:
        raise JoyError(f"'{given}' is no folder and no commit here", where="--origin", help=WHERE)
    if commit is None or not (given or is_edited(project)):
        return Origin(project, given, total(snapshot(project)), in_memory=True)
    lay_commit(project, commit.strip(), scratch)
    return Origin(scratch, given or "HEAD", total(snapshot(scratch)))


def is_edited(project: Path) -> bool:
    """Whether code of the project differs from its commit."""
    changed = git(project, "diff", "--name-only", "--relative", "HEAD", "--", ".") or ""
    return any(PurePosixPath(name).suffix in CODE for name in changed.splitlines())


def lay_commit(project: Path, commit: str, scratch: Path) -> None:
    """The project with its tracked files as they were at `commit`: data that git does not keep
    stays beside them."""
    shutil.rmtree(scratch, ignore_errors=True)
    original.copy(project, scratch)
    done = subprocess.run(["git", "-C", str(project), "archive", commit, "."], capture_output=True)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise JoyError(f"git gives no files of {commit[:12]}: {said}", where=str(project))
    for name in (git(project, "ls-files", "-z", ".") or "").split("\0"):
        if name and not SKIPPED & set(PurePosixPath(name).parts):
            own_folder(scratch, name).unlink(missing_ok=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        for one in files:
            if one.isdir() or SKIPPED & set(PurePosixPath(one.name).parts):
                continue
            target = own_folder(scratch, one.name)
            target.unlink(missing_ok=True)
            if one.issym():
                target.symlink_to(one.linkname)
                continue
            found = files.extractfile(one)
            target.write_bytes(found.read() if found else b"")
            target.chmod(0o755 if one.mode & 0o100 else 0o644)


def own_folder(scratch: Path, name: str) -> Path:
    """A file's place in `scratch`. Folders on the way that are links into the project become
    folders of links: nothing is written through them."""
    place = scratch
    for part in PurePosixPath(name).parts[:-1]:
        place /= part
        if place.is_symlink():
            real = place.resolve()
            place.unlink()
            place.mkdir()
            for child in real.iterdir():
                (place / child.name).symlink_to(child)
        place.mkdir(exist_ok=True)
    return scratch / name
