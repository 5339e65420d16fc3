# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The storage classes of LMCache, vLLM and SGLang, imported on a machine without a GPU.

The packages are installed without their dependencies (scripts/check/engines.sh). Modules that cannot be imported
there are replaced by stubs of the names that the storage code uses; the storage code itself is the engines' own.
"""

import dataclasses
import importlib.util
import logging
import os
import sys
import types

VERSIONS = {"lmcache": "0.5.6", "vllm": "0.33.0", "sglang": "0.5.23"}


def missing(package):
    """Returns why the tests of an engine cannot run, or None."""
    for name in ("kvtool", "torch", package):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed (scripts/check/engines.sh installs it)"
    if sys.platform != "linux":
        return "the engines' storage code needs Linux"
    return None


def prepare(package):
    """Makes `package` importable. Returns why that failed, or None."""
    reason = missing(package)
    if reason:
        return reason
    try:
        {"lmcache": _prepare_lmcache, "vllm": _prepare_vllm, "sglang": _prepare_sglang}[package]()
    except ImportError as error:
        return f"{package} cannot be imported: {error}"
    return None


def _prepare_lmcache():
    # Only the usage telemetry uses aiohttp; a stub also ensures that nothing is sent.
    os.environ["LMCACHE_TRACK_USAGE"] = "false"
    if importlib.util.find_spec("aiohttp") is None:
        _stub("aiohttp", ClientSession=object, ClientTimeout=_nothing, TCPConnector=_nothing)
    import torch  # noqa: F401  # first: LMCache's native part links its libraries
    import lmcache.v1.distributed.l2_adapters  # noqa: F401

    logging.getLogger("lmcache").setLevel(logging.CRITICAL)


def _prepare_vllm():
    import torch  # noqa: F401

    connector = "vllm.distributed.kv_transfer.kv_connector.v1"
    root = os.path.dirname(importlib.util.find_spec("vllm").origin)
    for name in (
        "vllm",
        "vllm.distributed",
        "vllm.distributed.device_communicators",
        "vllm.distributed.kv_transfer",
        "vllm.distributed.kv_transfer.kv_connector",
        connector,
        connector + ".offloading",
        "vllm.utils",
        "vllm.v1",
        "vllm.v1.metrics",
    ):
        _shell(name, os.path.dirname(root))
    _stub("vllm.logger", init_logger=lambda name: _Logger(logging.getLogger(name), {}))
    _stub("vllm.config", VllmConfig=object)
    _stub(
        connector + ".metrics",
        KVConnectorPromMetrics=object,
        KVConnectorStats=_ConnectorStats,
        PromMetric=object,
        PromMetricT=object,
    )
    _stub(connector + ".offloading.canonical_mapping", canonical_format_id=lambda layout: f"v1-{layout}")
    _stub("vllm.distributed.device_communicators.shm_broadcast", check_shm_free_space=_nothing)
    _stub("vllm.v1.kv_offload.cpu.host_register", host_register=_nothing, host_unregister=_nothing)
    import vllm.v1.kv_offload.tiering.manager  # noqa: F401

    logging.getLogger("vllm").setLevel(logging.CRITICAL)


def _prepare_sglang():
    import torch  # noqa: F401

    root = os.path.dirname(os.path.dirname(importlib.util.find_spec("sglang").origin))
    for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.mem_cache"):
        _shell(name, root)
    _stub("sglang.srt.utils.common", human_readable_int=_human_readable_int)
    import sglang.srt.mem_cache.storage.backend_factory  # noqa: F401

    logging.getLogger("sglang").setLevel(logging.CRITICAL)


def _human_readable_int(text):
    text = str(text).strip().lower()
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
    return int(float(text[:-1]) * units[text[-1]]) if text and text[-1] in units else int(text)


def _nothing(*_, **__):
    return None


def _shell(name, root):
    """A package of the engine, imported without running its __init__."""
    if name in sys.modules:
        return
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(root, *name.split("."))]
    module.__spec__ = importlib.util.spec_from_loader(name, None, is_package=True)
    _add(name, module)


def _stub(name, **attributes):
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    _add(name, module)


def _add(name, module):
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)


class _Logger(logging.LoggerAdapter):
    def warning_once(self, message, *arguments, **_):
        self.warning(message, *arguments)

    def info_once(self, message, *arguments, **_):
        self.info(message, *arguments)


@dataclasses.dataclass
class _ConnectorStats:
    """vLLM's base class of this name."""

    data: dict = dataclasses.field(default_factory=dict)

    def is_empty(self):
        return not self.data
