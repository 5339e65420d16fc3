# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The adapter_params of the LMCache adapter."""

from kvtool._configuration import level_option, size_option

from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase

_HELP = """kvtool adapter_params:
- base_path (str): folder for the frames (required)
- level (str): "fast", "default", "high" or "max" (default "fast")
- workers (int): that store, and as many that load, each an object at a time (default 2)
- threads (int): that code one object; 0: as many as the process may use (default 1)
- max_gb (number): limit of the folder in GiB, beyond which the least recently used objects go; 0: none (default)
- revision (str): of the model's weights; objects of another revision are misses (default "")
- head_dim (int): values per head, which helps compression a little (default: not known)
- durable (bool): write each file through to the disk (default false)"""


class KvtoolAdapterConfig(L2AdapterConfigBase):
    """adapter_params of the adapter; unknown ones are refused."""

    def __init__(self, base_path, level="fast", workers=2, threads=1, max_gb=0, revision="", head_dim=None,
                 durable=False):
        if not isinstance(base_path, str) or not base_path:
            raise ValueError("base_path must be a string that is not empty")
        if not isinstance(revision, str):
            raise ValueError("revision must be a string")
        if head_dim is not None and (isinstance(head_dim, bool) or not isinstance(head_dim, int) or head_dim < 1):
            raise ValueError("head_dim must be a positive integer")
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError("workers must be a positive integer")
        if not isinstance(durable, bool):
            raise ValueError("durable must be true or false")
        self.base_path = base_path
        self.level = level_option(level)
        self.workers = workers
        self.threads = threads
        self.max_bytes = size_option(max_gb, "max_gb")
        self.revision = revision
        self.head_dim = head_dim
        self.durable = durable

    @classmethod
    def from_dict(cls, d):
        try:
            return cls(**d)
        except TypeError as error:
            raise ValueError(f"kvtool adapter_params: {error}\n{_HELP}") from None

    @classmethod
    def help(cls):
        return _HELP
