"""What the kernels of CPUs order the bytes of KV by."""

from __future__ import annotations

import platform


def processor() -> str:
    """This host's CPU, as far as its kernels lay KV out by it: those for AMX do it in tiles."""
    import torch

    amx = torch.cpu._is_amx_tile_supported()
    return f"cpu {platform.machine()}{' amx' if amx else ''}"
