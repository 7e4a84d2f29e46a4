"""What routers send."""

# To a prefill engine: vLLM's proxy for NIXL, llm-d's routing sidecar, and Dynamo.
TO_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
