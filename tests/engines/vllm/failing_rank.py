"""The connector, whose rank 1 cannot load what lies behind two blocks of a prompt."""

from __future__ import annotations

from typing import Any

import rackline
import rackline.vllm

GOOD_BLOCKS = 2


class RacklineConnector(rackline.vllm.RacklineConnector):
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        rank = self.worker.handshake().identity.rank
        for job in self.step.loads:
            if rank == 1:
                # Of another block, or of none.
                good = GOOD_BLOCKS * rackline.HANDLE_BYTES
                handles = job.handles[rank]
                job.handles[rank] = handles[:good] + bytes(byte ^ 0x55 for byte in handles[good:])
        super().start_load_kv(forward_context, **kwargs)
