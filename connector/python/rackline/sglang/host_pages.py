"""Where the pages of SGLang's host pool lie in memory."""

from __future__ import annotations

from typing import Any

import rackline
from rackline.engines.settings import SettingsError


def pages_in_memory(pool: Any) -> tuple[rackline.BlockMemory, list[int]]:
    """The pages of a host pool as blocks, and the lengths of a block's parts in bytes.

    The pool itself says where a page is; it is asked for the first, the second and the last, between
    which they must lie at equal distances.
    """
    if str(pool.device) != "cpu":
        raise SettingsError(f"the host pool is on {pool.device}: it must be in memory of the host")
    count = pool.size // pool.page_size
    if count < 2:
        raise SettingsError(f"a host pool of {count} pages: give it more with --hicache-size")
    try:
        first, lengths = _page(pool, 0)
        second, _ = _page(pool, 1)
        last, _ = _page(pool, count - 1)
    except (AttributeError, ValueError, NotImplementedError) as error:
        raise SettingsError(
            f"{type(pool).__name__} with the layout {pool.layout!r} does not say where its pages "
            f'are ({error}): use --hicache-mem-layout page_first or page_first_direct'
        ) from error
    parts = []
    for start, next_start, last_start, length in zip(first, second, last, lengths, strict=True):
        stride = next_start - start
        if stride <= 0 or last_start != start + (count - 1) * stride:
            raise SettingsError(
                f"the pages of {type(pool).__name__} with the layout {pool.layout!r} do not lie at "
                "equal distances: use --hicache-mem-layout page_first"
            )
        parts.append((start, stride, length))
    return rackline.BlockMemory(parts, count, pool.kv_buffer), lengths


def _page(pool: Any, page: int) -> tuple[list[int], list[int]]:
    """Addresses and lengths of a page's parts."""
    import torch

    start = page * pool.page_size
    indices = torch.arange(start, start + pool.page_size, dtype=torch.int64)
    addresses, lengths = pool.get_page_buffer_meta(indices)
    return list(addresses), list(lengths)


def page_numbers(host_indices: Any, page_tokens: int, pages: int) -> list[int] | None:
    """The pages that SGLang means by the indices of their tokens; ``None`` when these are not of
    ``pages`` whole pages."""
    if host_indices is None or host_indices.numel() != pages * page_tokens:
        return None
    tokens = host_indices.reshape(pages, page_tokens).cpu()
    firsts = tokens[:, 0]
    if not bool((firsts % page_tokens == 0).all()):
        return None
    if not bool((tokens - firsts.unsqueeze(1) == tokens.new_tensor(range(page_tokens))).all()):
        return None
    return (firsts // page_tokens).tolist()
