#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# processors.sh UNIT_TESTS: the products of matrices with the kernels of every processor that this one can stand in for, since
# scripts/cmake/Blas.cmake leaves the kernels out that no product uses, for each processor on its own.
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
