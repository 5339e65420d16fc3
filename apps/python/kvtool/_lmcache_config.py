# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The adapter_params of the LMCache adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase

from ._configuration import StoreOptions, count_option

_HELP = """kvtool adapter_params:
- base_path (str): folder for the frames; or
- memory_gb (number): GiB of memory for the frames, in place of a folder
- level (str): "fast", "default", "high" or "max" (default "fast")
- workers (int): that store, and as many that load, each an object at a time (default 2)
- threads (int): that code one object; 0: as many as the process may use (default 1)
- profile (str): a .kvp file of the model, for levels from "default" on
- max_gb (number): limit of the folder in GiB, beyond which the least recently used objects go; 0: none (default)
- revision (str): of the model's weights; objects of another revision are misses (default "")
- head_dim (int): values per head, which helps compression a little (default: not known)
- skip_salts (list): cache_salt of requests whose objects are neither stored nor found
- durable (bool): write each file through to the disk (default false)"""


class KvtoolAdapterConfig(L2AdapterConfigBase):
    """adapter_params of the adapter; unknown ones are refused."""

    def __init__(
        self,
        base_path: str = "",
        workers: int = 2,
        head_dim: int | None = None,
        skip_salts: Sequence[str] = (),
        **options: Any,
    ) -> None:
        if isinstance(skip_salts, str) or not all(isinstance(salt, str) for salt in skip_salts):
            raise ValueError("skip_salts must be a list of strings")
        self.options = StoreOptions(folder=base_path, **options)
        self.workers = count_option(workers, "workers")
        self.head_dim = None if head_dim is None else count_option(head_dim, "head_dim")
        self.skip_salts = frozenset(skip_salts)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> KvtoolAdapterConfig:
        try:
            return cls(**d)
        except TypeError as error:
            raise ValueError(f"kvtool adapter_params: {error}\n{_HELP}") from None

    @classmethod
    def help(cls) -> str:
        return _HELP
