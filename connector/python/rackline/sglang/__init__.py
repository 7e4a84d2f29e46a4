"""Rackline for SGLang: a storage backend of HiCache that every engine of the rack shares.

Turn it on in an engine with

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{
      "backend_name": "rackline", "module_path": "rackline.sglang", "class_name": "RacklineStorage",
      "interface_v1": true, "region": "/dev/dax0.0", "node": 1
    }'

``docs/sglang.md`` in the source of this package lists all settings, what is stored, what is isolated,
and how to see that it works.
"""

from rackline.sglang.storage import RacklineStorage

__all__ = ["RacklineStorage"]
