"""Rackline for vLLM: a KV cache that every engine of the rack shares.

Turn it on in an engine with

    --kv-transfer-config '{
      "kv_connector": "RacklineConnector",
      "kv_connector_module_path": "rackline.vllm",
      "kv_role": "kv_both",
      "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"region": "/dev/dax0.0", "node": 1}
    }'

``docs/vllm.md`` in the source of this package lists all settings, what is stored, what is isolated,
and how to see that it works.

How the halves work together::

    scheduler process                                worker process, one a rank
    -----------------                                --------------------------
    SchedulerHalf                                    WorkerHalf
      asked what is cached  -> lookup, held
      blocks are allocated  -> LoadJob  --- step --->  fetch into the blocks
      blocks are full       -> SaveJob  --- step --->  publish from the blocks
      <--------------------------------- Report ----   what is done, what failed

With ``layerwise`` the forward's layers do the waiting and the telling, one by one (`layerwise`).

Blocks are opaque bytes: whole blocks of the engine, all layers of a group, as they lie in memory. What decides
what the bytes mean is in their identity (`identity`), which the ranks tell the scheduler at start.
"""

from rackline.vllm.connector import RacklineConnector

__all__ = ["RacklineConnector"]
