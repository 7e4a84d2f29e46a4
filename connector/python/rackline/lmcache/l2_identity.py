"""What decides what the bytes of an object mean, as far as LMCache's server tells its adapters."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any

import rackline
from rackline.engines.processor import processor

# The order of the bytes in an object is LMCache's. Counted up when what is taken of it changes.
LAYOUT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class ObjectForm:
    """What the objects of a model's group have in common. Objects of other forms never meet."""

    model_name: str
    kv_rank: int
    object_group_id: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    bytes: int


def object_form(key: Any, shapes: Iterable[Any], dtypes: Iterable[Any]) -> ObjectForm:
    """The form of the object of a key: of one that is there, or that LMCache describes."""
    shapes, dtypes = [tuple(shape) for shape in shapes], list(dtypes)
    size = sum(
        math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)
    )
    return ObjectForm(
        key.model_name,
        key.kv_rank,
        key.object_group_id,
        tuple(shapes),
        tuple(str(dtype) for dtype in dtypes),
        size,
    )


def object_model(form: ObjectForm, weights: str, on_gpu: bool) -> rackline.Model:
    """The identity of objects of a form, of the weights that ``weights`` stands for, that engines have
    computed on GPUs, or maybe not."""
    from importlib.metadata import version

    told = json.dumps(dataclasses.asdict(form), sort_keys=True)
    # LMCache does not say whose KV it is: without a word of the user it may be that of this host's CPU.
    device = "gpu" if on_gpu else processor()
    # The form says all of it: what a model has beside is told apart by that.
    return rackline.Model(
        name=weights,
        revision=f"lmcache {version('lmcache')} server {device} {told}",
        dtype=",".join(form.dtypes),
        layout_version=LAYOUT_VERSION,
        block_tokens=1,
        layers=1,
        kv_heads=1,
        head_dim=form.bytes,
    )


def object_hash(key: Any) -> bytes:
    """All of LMCache's key, as 32 bytes."""
    fields = [
        key.model_name,
        key.kv_rank,
        key.object_group_id,
        key.cache_salt,
        key.chunk_hash.hex(),
    ]
    return hashlib.sha256(json.dumps(fields).encode()).digest()
