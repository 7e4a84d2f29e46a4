"""Memory of tensors, arrays and buffers, as blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from rackline._native import BlockMemory, Error


def block_memory(*arrays: Any, layers: list[int] | None = None) -> BlockMemory:
    """The blocks of one or more arrays of equal first dimension: block ``b`` is ``array[b]`` of each
    in turn. ``layers`` says how many arrays each layer has, for transfers by layers.

    Takes torch tensors on the CPU or on one NVIDIA GPU, numpy arrays, and other objects with the
    writable buffer protocol (``bytearray``, ``mmap``, ``array``). The first dimension counts the blocks.
    The other dimensions of each array must be contiguous. A tensor must not be resized.

    The result keeps the arrays alive for as long as transfers need them. The caller must not write a
    block while it is published, nor read or write a block while it is fetched.
    """
    if not arrays:
        raise Error("block_memory() needs an array: pass one or more")
    parts, counts, views, gpus = [], set(), [], set()
    for array in arrays:
        gpus.add(_gpu_of(array))
        address, stride, block_bytes, blocks = _first_dimension(array, views)
        parts.append((address, stride, block_bytes))
        counts.add(blocks)
    if len(counts) != 1:
        raise Error(
            f"the arrays have different numbers of blocks: {sorted(counts)}; pass arrays of equal first "
            "dimension"
        )
    if len(gpus) != 1:
        raise Error("the arrays are on different devices: pass arrays of one device")
    return BlockMemory(parts, counts.pop(), (arrays, views), gpu=gpus.pop(), layers=layers)


def _is_tensor(array: Any) -> bool:
    return hasattr(array, "data_ptr") and hasattr(array, "stride")


def _gpu_of(array: Any) -> int | None:
    """The number of the GPU that an array is on."""
    if not _is_tensor(array) or array.device.type == "cpu":
        return None
    import torch

    if array.device.type != "cuda" or torch.version.hip is not None:
        raise Error(
            f"the tensor is on {array.device}: only tensors on a CPU or an NVIDIA GPU can be copied"
        )
    return array.get_device()


def _first_dimension(array: Any, views: list[Any]) -> tuple[int, int, int, int]:
    """Address, stride, length in bytes, and number of the blocks of an array. ``views`` gets the objects
    that must live so that the memory stays in place."""
    if _is_tensor(array):
        item = array.element_size()
        strides = [step * item for step in array.stride()]
        return _blocks(array.data_ptr(), list(array.shape), strides, item)
    if hasattr(array, "__array_interface__"):
        address, read_only = array.__array_interface__["data"]
        if read_only:
            raise Error("the array is read-only: pass a writable array")
        if array.dtype.hasobject:
            raise Error("the array has Python objects in it: pass an array of numbers")
        return _blocks(address, list(array.shape), list(array.strides), array.itemsize)
    view = memoryview(array)
    if view.readonly:
        raise Error(f"the {type(array).__name__} is read-only: pass a writable buffer")
    if view.strides is None or view.shape is None or not view.contiguous:
        raise Error(f"the {type(array).__name__} is not contiguous: pass a contiguous buffer")
    first = ctypes.c_char.from_buffer(view)
    address = ctypes.addressof(first)
    # An exported bytearray does not grow, and an exported mapping is not closed.
    views += [view, first]
    return _blocks(address, list(view.shape), list(view.strides), view.itemsize)


def _blocks(
    address: int, shape: Sequence[int], strides: Sequence[int], item: int
) -> tuple[int, int, int, int]:
    if not shape or 0 in shape:
        raise Error(f"an array of shape {list(shape)} has no blocks: no dimension may be 0")
    inner = item
    # A dimension of length 1 may have any stride.
    for length, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if length != 1 and stride != inner:
            raise Error(
                f"the blocks of shape {list(shape[1:])} are not contiguous: only the first dimension may "
                "have a stride"
            )
        inner *= length
    if strides[0] < 0:
        raise Error("the blocks are in reverse order: pass an array with a positive stride")
    return address, strides[0], inner, shape[0]
