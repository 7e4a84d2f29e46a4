"""The connector, whose rank 1 cannot load what lies behind two blocks of a prompt."""

from __future__ import annotations

from typing import Any

import rackline
import rackline.vllm

GOOD_BLOCKS = 2


class RacklineConnector(rackline.vllm.RacklineConnector):
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        places = [identity.place for identity in self.worker.handshake().identities]
        for load in [load for job in self.step.loads for load in job.groups]:
            for place in places:
                if place.heads == 1 and place.group == load.group:
                    # Of no block, or of another.
                    good = GOOD_BLOCKS * rackline.KEYLESS_HANDLE_BYTES
                    handles = load.handles[place]
                    load.handles[place] = handles[:good] + bytes(
                        byte ^ 0x55 for byte in handles[good:]
                    )
        super().start_load_kv(forward_context, **kwargs)
