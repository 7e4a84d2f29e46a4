"""Rackline for LMCache: a storage backend that every engine of the rack shares.

Turn it on in LMCache's configuration with

    storage_plugins: ["rackline"]
    extra_config:
      storage_plugin.rackline.module_path: rackline.lmcache
      storage_plugin.rackline.class_name: RacklineBackend
      rackline.region: /dev/dax0.0
      rackline.node: 1

LMCache's server loads ``rackline.lmcache.l2_adapter`` instead.

``docs/lmcache.md`` in the source of this package lists all settings, what is stored, what is isolated,
and how to see that it works.
"""

from rackline.lmcache.backend import RacklineBackend

__all__ = ["RacklineBackend"]
