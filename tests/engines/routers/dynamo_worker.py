"""Dynamo's worker for vLLM: ``python dynamo_worker.py ARGUMENTS of dynamo.vllm``.

Dynamo 1.6.1 is made for vLLM 0.31, and imports one name that vLLM 0.32 does not have. Only embeddings would
use it."""

import runpy


def missing(*arguments: object) -> None:
    raise NotImplementedError("this vLLM has no addresses of engines")


# vLLM starts its engine in a process of its own, which imports this file under another name.
if __name__ == "__main__":
    from vllm.v1.engine import utils

    if not hasattr(utils, "get_engine_zmq_addresses"):
        utils.get_engine_zmq_addresses = missing
    runpy.run_module("dynamo.vllm", run_name="__main__", alter_sys=True)
