"""Memory of tensors, arrays and buffers, as blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from rackline._native import BlockMemory, Error


def block_memory(*arrays: Any, layers: list[int] | None = None) -> BlockMemory:
    """The blocks of one or more arrays of equal first dimension: block ``b`` is ``array[b]`` of each
    in turn. ``layers`` says how many arrays each layer has, for transfers by layers.

    Takes torch tensors on the CPU or on one NVIDIA GPU, numpy arrays, and anything else with the
    writable buffer protocol (``bytearray``, ``mmap``, ``array``, of which the first dimension counts).
    The rest of each array's dimensions must be contiguous. A tensor must not be resized. The arrays are kept alive for as long as transfers
    need them; that nobody writes a block while it is published, nor touches it while it is fetched,
    is for the caller to see to.
    """
    if not arrays:
        raise Error("block_memory() needs an array")
    parts, counts, views, gpus = [], set(), [], set()
    for array in arrays:
        gpus.add(_gpu_of(array))
        address, stride, block_bytes, blocks = _first_dimension(array, views)
        parts.append((address, stride, block_bytes))
        counts.add(blocks)
    if len(counts) != 1:
        raise Error(f"arrays with different numbers of blocks: {sorted(counts)}")
    if len(gpus) != 1:
        raise Error("arrays that are not on one device")
    return BlockMemory(parts, counts.pop(), (arrays, views), gpu=gpus.pop(), layers=layers)


def _is_tensor(array: Any) -> bool:
    return hasattr(array, "data_ptr") and hasattr(array, "stride")


def _gpu_of(array: Any) -> int | None:
    """The number of the GPU that an array is on."""
    if not _is_tensor(array) or array.device.type == "cpu":
        return None
    import torch

    if array.device.type != "cuda" or torch.version.hip is not None:
        raise Error(f"a tensor on {array.device}: only those on a CPU or an NVIDIA GPU can be copied")
    return array.get_device()


def _first_dimension(array: Any, views: list[Any]) -> tuple[int, int, int, int]:
    """Address, stride, length in bytes, and number of the blocks of an array. What must be kept so
    that its memory stays where it is goes into ``views``."""
    if _is_tensor(array):
        item = array.element_size()
        strides = [step * item for step in array.stride()]
        return _blocks(array.data_ptr(), list(array.shape), strides, item)
    if hasattr(array, "__array_interface__"):
        address, read_only = array.__array_interface__["data"]
        if read_only:
            raise Error("a read-only array")
        if array.dtype.hasobject:
            raise Error("an array of Python objects")
        return _blocks(address, list(array.shape), list(array.strides), array.itemsize)
    view = memoryview(array)
    if view.readonly:
        raise Error(f"a read-only {type(array).__name__}")
    if view.strides is None or view.shape is None or not view.contiguous:
        raise Error(f"a {type(array).__name__} that is not contiguous")
    first = ctypes.c_char.from_buffer(view)
    address = ctypes.addressof(first)
    # As long as it is exported a bytearray does not grow, and a mapping is not closed.
    views += [view, first]
    return _blocks(address, list(view.shape), list(view.strides), view.itemsize)


def _blocks(
    address: int, shape: Sequence[int], strides: Sequence[int], item: int
) -> tuple[int, int, int, int]:
    if not shape or 0 in shape:
        raise Error(f"an array of shape {list(shape)} has no blocks")
    inner = item
    # One of length 1 may have any stride.
    for length, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if length != 1 and stride != inner:
            raise Error(f"blocks of shape {list(shape[1:])} that are not contiguous")
        inner *= length
    if strides[0] < 0:
        raise Error("blocks in reverse order")
    return address, strides[0], inner, shape[0]
