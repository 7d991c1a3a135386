"""What went wrong with a file, in words: which of the known troubles of disks it is, and the way out.

Owns: the reasons, whether they come as OSError or as the text of a library.
Invariant: a reason that is not known is given in the library's own words, never replaced by a guess.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from paceline.base.errors import PacelineError, SaveError

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "it is not yours to write to",
    errno.EPERM: "it is not yours to write to",
    errno.ENOENT: "the folder is gone",
    errno.ENOTDIR: "a file is where a folder should be",
    errno.EIO: "the disk reports an error",
    errno.ESTALE: "the network disk is gone",
    errno.EFBIG: "a file would be larger than the file system or a limit allows",
    errno.EMFILE: "too many files are open",
}
_SPACE = (errno.ENOSPC, errno.EDQUOT)
_LONGEST = 300


def reason(error: BaseException) -> str:
    """A few words for what happened."""
    code = _code(error)
    if code in _REASONS:
        return _REASONS[code]
    if isinstance(error, PacelineError):
        return error.what
    return (" ".join(str(error).split()) or type(error).__name__)[:_LONGEST]


def save_error(error: BaseException, *, step: int, folder: Path) -> SaveError:
    """The error of a save that failed, in words."""
    if isinstance(error, SaveError):
        return error
    made = SaveError(
        what=f"the checkpoint of step {step} could not be saved in {str(folder)!r}: {reason(error)}",
        why="a run that ends now goes on from the checkpoint before it, which is untouched",
        fix=_way_out(error, folder),
    )
    made.__cause__ = error
    return made


def _way_out(error: BaseException, folder: Path) -> str:
    code = _code(error)
    if code in _SPACE:
        return f"free space on the disk of {str(folder)!r}, or keep fewer checkpoints; the next save is tried again"
    if code == errno.ENOENT:
        return f"put {str(folder)!r} back; the next save is tried again"
    if isinstance(error, PacelineError):
        return error.fix
    if code is not None:
        return f"make {str(folder)!r} writable; the next save is tried again"
    return "the reason is that of the library that writes; the next save is tried again"


def _code(error: BaseException | None) -> int | None:
    """The number of the error, of what caused it, or the one that its text names."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        text = str(error)
        for code in _REASONS:
            if os.strerror(code) in text:
                return code
        error = error.__cause__ or error.__context__
    return None
