"""The connector under a name that Dynamo knows.

Dynamo 1.6 chooses by the connector's name what it sends to a prefill worker, and refuses names that it does
not know. Under this name it sends the keys of NIXL's connector, which Rackline understands (`handover`), and
sets up nothing else. vLLM takes the class from the module that is set::

    "kv_connector": "NeuronNixlConnector", "kv_connector_module_path": "rackline.vllm.dynamo"
"""

from rackline.vllm.connector import RacklineConnector, register_by_name

__all__ = ["NeuronNixlConnector"]


class NeuronNixlConnector(RacklineConnector):
    """Rackline's connector. Nothing of NIXL's is in it."""


register_by_name(NeuronNixlConnector)
