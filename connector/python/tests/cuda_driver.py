"""A stand-in for the CUDA driver, loaded into this process: memory of the process is memory of its GPU,
and streams do nothing before somebody waits for them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "gpu-check" / "tests" / "fake_cuda.c"
# As the package looks for it.
NAME = "libcuda.so"


class Driver:
    """What tests ask of it; the package does not know."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._called("cuCtxSetCurrent", self._context())

    def _called(self, name: str, *arguments: object) -> None:
        assert (code := getattr(self._library, name)(*arguments)) == 0, f"{name}: {code}"

    def _context(self) -> ctypes.c_void_p:
        context = ctypes.c_void_p()
        self._called("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        return context

    def has(self, address: int, length: int) -> None:
        """From now on that memory of this process is the GPU's."""
        self._library.fake_device_memory(ctypes.c_void_p(address), ctypes.c_size_t(length))

    def new_stream(self) -> int:
        stream = ctypes.c_void_p()
        self._called("cuStreamCreate", ctypes.byref(stream), 0)
        return stream.value

    def write_later(self, stream: int, address: int, content: bytes) -> None:
        """Work that is launched, and done when somebody waits for it."""
        self._called(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(address),
            ctypes.c_char_p(content),
            ctypes.c_size_t(len(content)),
            ctypes.c_void_p(stream),
        )

    def come_after(self, stream: int, other: int) -> None:
        """What the stream is given from now on is done after what the other was given so far."""
        event = ctypes.c_void_p()
        self._called("cuEventCreate", ctypes.byref(event), 0)
        self._called("cuEventRecord", event, ctypes.c_void_p(other))
        self._called("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
        self._called("cuEventDestroy_v2", event)

    def wait_for(self, stream: int) -> None:
        self._called("cuStreamSynchronize", ctypes.c_void_p(stream))

    @contextlib.contextmanager
    def capturing(self, stream: int) -> Iterator[None]:
        """What the stream is given becomes a graph."""
        self._called("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 0)
        try:
            yield
        finally:
            graph = ctypes.c_void_p()
            self._called("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))


@contextlib.contextmanager
def mode(text: str) -> Iterator[None]:
    """The driver as ``fake_cuda.c`` describes it under FAKE_CUDA."""
    os.environ["FAKE_CUDA"] = text
    try:
        yield
    finally:
        del os.environ["FAKE_CUDA"]


@functools.cache
def driver() -> Driver:
    """The driver of this process from now on, also where the machine has a real one."""
    with tempfile.TemporaryDirectory() as folder:
        built = pathlib.Path(folder) / NAME
        command = ["cc", "-shared", "-fPIC", "-O2", "-pthread", f"-Wl,-soname,{NAME}"]
        subprocess.run([*command, "-o", built, SOURCE], check=True)
        # A later load of this name in this process gets the library that is loaded already.
        return Driver(ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL))
