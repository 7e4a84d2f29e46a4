"""An initial file system for a Linux kernel, packed from memory: the "newc" form of cpio(5)."""

import gzip
import stat


def pack(files: dict[str, bytes], links: dict[str, str]) -> bytes:
    """An archive of executable `files` and symbolic `links`, by absolute path, compressed."""
    entries: dict[str, tuple[int, bytes]] = {}
    for path, content in files.items():
        entries[path.lstrip("/")] = (stat.S_IFREG | 0o755, content)
    for path, target in links.items():
        entries[path.lstrip("/")] = (stat.S_IFLNK | 0o777, target.encode())
    for path in list(entries):
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            entries.setdefault("/".join(parts[:depth]), (stat.S_IFDIR | 0o755, b""))
    # A folder comes before what is in it.
    archive = b"".join(_entry(path, *entries[path]) for path in sorted(entries))
    return gzip.compress(archive + _entry("TRAILER!!!", 0, b""), compresslevel=1)


def _entry(path: str, mode: int, content: bytes) -> bytes:
    name = path.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, device, special device, name size, checksum
    fields = [0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0]
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
