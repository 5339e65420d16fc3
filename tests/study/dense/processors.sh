#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# processors.sh UNIT_TESTS: tests matrix products with the kernels of every processor whose instructions this one has, because
# scripts/cmake/Blas.cmake leaves out, for each processor separately, the kernels that no product uses.
set -euo pipefail
cores=(Prescott Core2 Penryn Dunnington Nehalem Atom Nano)
flags=$(grep -m1 '^flags' /proc/cpuinfo || true)
[[ " $flags " == *" sse3 "* || " $flags " == *" pni "* ]] || { echo "skipped: no x86 with SSE3"; exit 77; }
[[ " $flags " != *" avx "* ]] || cores+=(Sandybridge)
[[ " $flags " != *" avx2 "* || " $flags " != *" fma "* ]] || cores+=(Haswell Zen)
[[ " $flags " != *" avx512vl "* ]] || cores+=(SkylakeX)
[[ " $flags " != *" avx512_bf16 "* ]] || cores+=(Cooperlake)
for core in "${cores[@]}"; do
  OPENBLAS_CORETYPE=$core "$1" '[gemm]' >/dev/null || { echo "wrong products, or none, as on $core"; exit 1; }
done
echo "${#cores[@]} processors"
