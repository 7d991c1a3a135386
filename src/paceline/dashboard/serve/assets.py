"""The files of the page: our own from the package, plotly's JavaScript from the installed plotly.

Owns: which files can be asked for, their types, tags and compressed forms.
Not here: HTTP routes (`serve.app`), the headers of all responses (`serve.security`).
Invariant: a name selects among files that were listed; it is never joined to a path.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from paceline.base.errors import OptionError

PLOTLY = "plotly.min.js"

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_COMPRESSED = (".css", ".html", ".js", ".json", ".svg")


@dataclass(frozen=True)
class Asset:
    """A file as it is sent.

    Args:
      content: its bytes, compressed if ``encoding`` says so.
      media_type: for ``Content-Type``.
      tag: for ``ETag``: another file or another form of it has another one.
      encoding: ``gzip`` or None.
    """

    content: bytes
    media_type: str
    tag: str
    encoding: str | None


class Assets:
    """Gives the files by name. Safe to use from several threads.

    Compressed forms are kept: some 1.5 MB, most of it plotly. Plain ones are read when asked for.

    Args:
      folder: of our own files; default: that of the package.
      plotly: plotly's JavaScript; default: where the installed package has it.
    """

    def __init__(self, folder: Path | None = None, plotly: Path | None = None) -> None:
        self._folder = folder or Path(__file__).parent.parent / "assets"
        self._plotly = plotly or find_plotly()
        self._compressed: dict[tuple[str, str], bytes] = {}
        self._lock = Lock()

    def get(self, name: str, *, compress: bool) -> Asset | None:
        """The file, or None if there is none of this name."""
        path = self._plotly if name == PLOTLY else self._own(name)
        if path is None:
            return None
        try:
            state = path.stat()
            tag = f"{state.st_mtime_ns:x}-{state.st_size:x}"
            if not compress or path.suffix not in _COMPRESSED:
                return Asset(path.read_bytes(), _TYPES[path.suffix], f'"{tag}"', None)
            return Asset(self._compress(path, tag), _TYPES[path.suffix], f'"{tag}-gz"', "gzip")
        except OSError:
            return None

    def _own(self, name: str) -> Path | None:
        found = self._files().get(name)
        return found if found is not None and found.suffix in _TYPES else None

    def _files(self) -> dict[str, Path]:
        """The files of the folder and of the folders in it, by their path with slashes. Links are no files of ours."""
        return {
            path.relative_to(self._folder).as_posix(): path
            for folder, _, names in os.walk(self._folder)
            for path in (Path(folder, name) for name in names if not name.startswith("."))
            if not path.is_symlink()
        }

    def _compress(self, path: Path, tag: str) -> bytes:
        with self._lock:  # two that ask at once wait for one
            key = (str(path), tag)
            if key not in self._compressed:
                for old in [known for known in self._compressed if known[0] == str(path)]:
                    del self._compressed[old]
                self._compressed[key] = gzip.compress(path.read_bytes(), 6, mtime=0)
            return self._compressed[key]


def find_plotly() -> Path:
    """Plotly's JavaScript in the installed package, which is not imported: that would take a second.

    Raises: OptionError: plotly is not installed.
    """
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "package_data" / PLOTLY
        if path.is_file():
            return path
    raise missing_extra("plotly")


def missing_extra(package: str) -> OptionError:
    """The error for a package of the extra that is not there."""
    return OptionError(
        what=f"the page needs {package}, which is not installed",
        why="the server and the charts come from packages that training does without",
        fix="pip install 'paceline[watch]', or look at the runs in the terminal with paceline watch --terminal",
    )
