"""Shows what went wrong: the user's mistake, the machine's refusal, or our own bug."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Any

from joymigrate.errors import Exit, JoyError

# What goes wrong around a program, not in it: no space, no permission, a file where a folder
# should be, too many open files.
OUTSIDE = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE,
    errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
})  # fmt: skip


def show_error(error: JoyError) -> int:
    """Show a mistake of the user's."""
    print(f"error: {error}", file=sys.stderr)
    return Exit.ERROR


def leave_stdout() -> None:
    """Let what is still to be written go nowhere: Python flushes once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def outside(error: Exception) -> JoyError | None:
    """An error of the machine around us as one for the user; None for any other."""
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.ENOENT and not working_folder():
        return JoyError("the working folder is gone", help="cd to a folder that exists")
    if error.errno not in OUTSIDE:
        return None
    if error.filename is None:
        if error.errno == errno.ENOSPC:
            leave_stdout()
        return JoyError(f"cannot write: {error.strerror}")
    return JoyError(f"cannot use this path: {error.strerror}", where=os.fsdecode(error.filename))


def working_folder() -> bool:
    """Whether the folder that the process was started in is still there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def usage_error(error: Any) -> int:
    """Show a wrong command line in one line, with how to get help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        return Exit.ERROR
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "joymigrate"
    message = error.format_message()
    if message:
        print(f"error: {message}\n  help: {where} --help", file=sys.stderr)
    return Exit.ERROR


def bug(error: BaseException) -> int:
    """Report our own mistake as such."""
    traceback.print_exception(error)
    print(
        "error: this is a bug in joymigrate, not a mistake of yours\n"
        "  help: open an issue where you got joymigrate from, with the lines above,\n"
        "  the command line and the output of `joymigrate doctor --format json`",
        file=sys.stderr,
    )
    return Exit.ERROR
