"""Digests of large files, computed once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import tempfile
from multiprocessing.pool import ThreadPool

THREADS = 8
READ_BYTES = 8 << 20


def digests(files: list[pathlib.Path]) -> list[str]:
    """The SHA-256 of the content of each file, side by side. Kept for files that do not change in
    ``$RACKLINE_CACHE/weights``, else ``~/.cache/rackline/weights``."""
    # A process that ends meanwhile does not wait for these threads: large weights take minutes.
    with ThreadPool(THREADS) as threads:
        return threads.map(_digest, files)


def _digest(file: pathlib.Path) -> str:
    status = file.stat()
    # Images with normalised modification times give other weights of equal size the same path and
    # time. The change time is set by the kernel, and the inode number counts within its device.
    now = [
        str(file.resolve()),
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    ]
    name = hashlib.sha256(json.dumps(now).encode()).hexdigest()
    kept = _folder() / name
    with contextlib.suppress(OSError):
        text = kept.read_text()
        if len(text) == 64:
            return text
    hasher = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(READ_BYTES):
            hasher.update(piece)
    digest = hasher.hexdigest()
    # Not to be able to keep it costs time only.
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False) as partial:
            partial.write(digest)
        os.replace(partial.name, kept)
    return digest


def _folder() -> pathlib.Path:
    configured = os.environ.get("RACKLINE_CACHE")
    return pathlib.Path(configured or pathlib.Path.home() / ".cache" / "rackline") / "weights"
