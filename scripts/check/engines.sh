#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the plug-ins for LMCache, vLLM and SGLang through these engines' own storage classes on a CPU. Makes a virtual
# environment with the released engines (without their GPU dependencies) and PyTorch: about 6 GB, which is why CI does not.
#   scripts/check/engines.sh WHEEL            a wheel of kvtool, for example dist/kvtool-*-cp311-*.whl
#   scripts/check/engines.sh PACKAGE_FOLDER   a folder that holds the package, for example build/python/package
# ENGINES_VENV: the environment (default build/engines-venv), kept between runs. PYTHON: 3.11 (default python3.11).
set -euo pipefail
cd "$(dirname "$0")/../.."
kvtool=${1:?usage: scripts/check/engines.sh WHEEL|PACKAGE_FOLDER [pytest arguments]}
shift
venv=${ENGINES_VENV:-build/engines-venv}
mkdir -p "$(dirname "$venv")"
venv=$(realpath "$venv")
python=$venv/bin/python

if [ ! -e "$venv/complete" ]; then
  "${PYTHON:-python3.11}" -m venv "$venv"
  # PyTorch is needed by the engines' storage code. If PIP_EXTRA_INDEX_URL names an index of PyTorch for CPUs, the
  # download is much smaller.
  "$python" -m pip install --quiet torch==2.14.0 'numpy<=2.2.6' pytest sortedcontainers cryptography cffi aiofiles msgspec \
    prometheus_client psutil pyzmq py-cpuinfo opentelemetry-api opentelemetry-sdk opentelemetry-exporter-prometheus \
    opentelemetry-exporter-otlp numba importlib_metadata deprecated wrapt pydantic pydantic-settings cachetools redis PyYAML xxhash
  "$python" -m pip install --quiet --no-deps lmcache==0.5.6 vllm==0.33.0 sglang==0.5.23
  touch "$venv/complete"
fi

if [ -d "$kvtool" ]; then
  export PYTHONPATH=$(realpath "$kvtool")
else
  "$python" -m pip install --quiet --force-reinstall --no-deps "$kvtool"
fi

# LMCache's native part needs a symbol of GCC 13's libstdc++; a shim provides it on older systems.
if ! "$python" -c 'import torch, lmcache.lmcache_native' 2>/dev/null; then
  shim=$venv/libstdcxx_shim.so
  c++ -O2 -shared -fPIC -o "$shim" apps/python/tests/libstdcxx_shim.cc
fi

cd apps/python/tests
status=0
for engine in codec engine_doubles plugin_store lmcache vllm sglang; do
  # Each engine runs in its own process, because stubs of one engine would break another.
  echo "== $engine"
  LD_PRELOAD=${shim:-} "$python" -m pytest -q -p no:cacheprovider -rs \
    "test_$engine.py" "$@" || status=$?
done
exit "$status"
