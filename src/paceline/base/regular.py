"""Opening files of which nobody knows what lies there.

Owns: reading regular files alone, so that nothing waits for a writer and nothing is read without end.
Not here: what the files hold.
Invariant: a named pipe, a folder, a device or a socket is an `OSError` whose `strerror` says in words which it is.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

_OTHERS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_NOWHERE = "a link that leads nowhere"


@contextmanager
def opened_regular(path: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor to read a file from. To open a named pipe would wait for its writer: that is never done.

    Raises: OSError: it cannot be opened, or is no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:  # sockets, devices that nothing drives and broken links cannot even be opened
        other = _other_at(path)
        if other is None:
            raise
        raise _no_file(path, other) from error
    try:
        other = _other(os.fstat(descriptor).st_mode)
        if other:
            raise _no_file(path, other)
        yield descriptor
    finally:
        os.close(descriptor)


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The content of a file. Raises: OSError: as `opened_regular`."""
    with opened_regular(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read()


def in_place_of(path: str | os.PathLike[str]) -> str | None:
    """Why no file can be read there: what lies in its place, or whose it is. None for a regular file, and for nothing.

    Nothing is opened.
    """
    try:
        os.stat(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return reason(error)
    other = _other_at(path)
    return other and f"{other} lies there, not a file"


def reason(error: Exception) -> str:
    """Why a file could not be read, without number and path, which the message around it has."""
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())


def _other_at(path: str | os.PathLike[str]) -> str | None:
    """What lies there in place of a regular file; None for a regular file, for nothing, and if nobody can tell."""
    try:
        return _other(os.stat(path).st_mode)
    except OSError:
        return _NOWHERE if os.path.islink(path) and not os.path.exists(path) else None


def _other(mode: int) -> str | None:
    """What it is in place of a regular file; None for a regular file."""
    return None if stat.S_ISREG(mode) else _OTHERS.get(stat.S_IFMT(mode), "something else")


def _no_file(path: str | os.PathLike[str], other: str) -> OSError:
    return OSError(errno.EINVAL, f"{other} lies there, not a file", os.fspath(path))
