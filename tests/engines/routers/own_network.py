"""A network of this process and its children alone, with the loopback device only.

Dynamo's event sockets bind to all addresses whatever they are told."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
IFF_UP = 1


def enter() -> None:
    """Only the calling thread changes its network, and what it starts from now on."""
    if _unshare(CLONE_NEWNET) == errno.EPERM and _unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        raise PermissionError("a network of its own needs root, or namespaces for users")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = b"lo".ljust(16, b"\0")
        answer = fcntl.ioctl(control, SIOCGIFFLAGS, name + bytes(24))
        (flags,) = struct.unpack_from("H", answer, 16)
        fcntl.ioctl(control, SIOCSIFFLAGS, name + struct.pack("H", flags | IFF_UP) + bytes(22))


def _unshare(what: int) -> int:
    """0, or the number of the error."""
    if ctypes.CDLL(None, use_errno=True).unshare(what) == 0:
        return 0
    return ctypes.get_errno() or os.EX_OSERR
