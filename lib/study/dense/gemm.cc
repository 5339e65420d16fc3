// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/dense/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <mutex>
#include <new>
#include <semaphore>
#include <string_view>

#include "lib/core/base/error.h"

static thread_local bool in_product = false;  // true where malloc's result is not checked

#ifdef KVTOOL_WRAPS_BLAS
// An OpenBLAS without threads hands out its work buffers without a lock: two calls at once can get
// the same buffer, and products come out wrong. The linker routes its calls through these two
// functions instead (scripts/cmake/Blas.cmake), so that only taking and returning a buffer is
// serialised.
//
// Its kernels for small products (AVX-512) write to the result of malloc without checking it. So
// its malloc is routed through here, too, and throws if such a kernel would have got null;
// everywhere else it is malloc.
namespace {
std::mutex buffers;

class Outside {
 public:
  Outside() { in_product = false; }
  ~Outside() { in_product = was_; }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

 private:
  bool was_ = in_product;
};
}  // namespace
extern "C" {
void* __real_malloc(size_t size);
void* __wrap_malloc(size_t size) {
  void* memory = __real_malloc(size);
  if (memory != nullptr || size == 0 || !in_product) return memory;
  in_product = false;  // a throw allocates memory, too
  throw std::bad_alloc();
}
void* __real_blas_memory_alloc(int position);
void __real_blas_memory_free(void* buffer);
void* __wrap_blas_memory_alloc(int position) {
  const std::lock_guard lock(buffers);
  const Outside outside;
  return __real_blas_memory_alloc(position);
}
void __wrap_blas_memory_free(void* buffer) {
  const std::lock_guard lock(buffers);
  __real_blas_memory_free(buffer);
}
}
#endif  // KVTOOL_WRAPS_BLAS

#ifdef KVTOOL_WRAPS_CORE
// OpenBLAS knows processors by their model number and gives those that are newer than itself its
// kernels of 2004: on an Emerald Rapids (2023) version 0.3.21 multiplied at an eighth of the speed.
// The linker routes its start through here, which starts it again with the kernels that the
// processor's features allow, unless OPENBLAS_CORETYPE chooses. OpenBLAS takes a choice only from
// that variable, so its getenv is routed through here, too; the environment itself stays.
static constexpr std::string_view kCoreType = "OPENBLAS_CORETYPE";
static thread_local const char* core_type = nullptr;  // non-null only during the second start
extern "C" {
char* __real_getenv(const char* name);
char* __wrap_getenv(const char* name) {
  if (core_type != nullptr && name == kCoreType) return const_cast<char*>(core_type);
  return __real_getenv(name);
}
void gotoblas_dynamic_quit();
void __real_gotoblas_dynamic_init();
void __wrap_gotoblas_dynamic_init() {
  __real_gotoblas_dynamic_init();
  __builtin_cpu_init();
  if (__real_getenv(kCoreType.data()) != nullptr || !__builtin_cpu_supports("avx2") ||
      !__builtin_cpu_supports("fma")) {
    return;
  }
  const std::string_view found = openblas_get_corename();
  if (found != "Prescott" && found != "Barcelona") return;  // neither has AVX2
  core_type = __builtin_cpu_supports("avx512vl") ? "SkylakeX" : "Haswell";
  gotoblas_dynamic_quit();
  __real_gotoblas_dynamic_init();
  core_type = nullptr;
}
}
#endif  // KVTOOL_WRAPS_CORE

namespace kv {
namespace {

// OpenBLAS has a fixed number of work buffers (50 at least) and ends the process when it needs
// more.
constexpr int kMostProductsAtOnce = 32;

// A product holds a Turn while it runs, which limits how many run at once.
class Turn {
 public:
  Turn() {
    Free().acquire();
    in_product = true;
  }
  ~Turn() {
    in_product = false;
    Free().release();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  static std::counting_semaphore<kMostProductsAtOnce>& Free() {
    static std::counting_semaphore<kMostProductsAtOnce> free(kMostProductsAtOnce);
    return free;
  }
};

void Gemm(CBLAS_TRANSPOSE b_order, const float* a, uint64_t lda, const float* b, uint64_t ldb,
          float* c, uint64_t ldc, uint64_t m, uint64_t n, uint64_t k, bool accumulate) {
  KV_ASSERT(std::max({lda, ldb, ldc, m, n, k}) <= INT_MAX);
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (uint64_t i = 0; i < m && !accumulate; ++i) std::fill_n(c + i * ldc, n, 0.0f);
    return;
  }
  const Turn turn;
  cblas_sgemm(CblasRowMajor, CblasNoTrans, b_order, static_cast<int>(m), static_cast<int>(n),
              static_cast<int>(k), 1.0f, a, static_cast<int>(lda), b, static_cast<int>(ldb),
              accumulate ? 1.0f : 0.0f, c, static_cast<int>(ldc));
}

}  // namespace

void GemmNT(const float* a, uint64_t lda, const float* b, uint64_t ldb, float* c, uint64_t ldc,
            uint64_t m, uint64_t n, uint64_t k, bool accumulate) {
  Gemm(CblasTrans, a, lda, b, ldb, c, ldc, m, n, k, accumulate);
}

void GemmNT(const double* a, uint64_t lda, const double* b, uint64_t ldb, double* c, uint64_t ldc,
            uint64_t m, uint64_t n, uint64_t k) {
  KV_ASSERT(std::max({lda, ldb, ldc, m, n, k}) <= INT_MAX);
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (uint64_t i = 0; i < m; ++i) std::fill_n(c + i * ldc, n, 0.0);
    return;
  }
  const Turn turn;
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(m), static_cast<int>(n),
              static_cast<int>(k), 1.0, a, static_cast<int>(lda), b, static_cast<int>(ldb), 0.0, c,
              static_cast<int>(ldc));
}

void GemmNN(const float* a, uint64_t lda, const float* b, uint64_t ldb, float* c, uint64_t ldc,
            uint64_t m, uint64_t n, uint64_t k, bool accumulate) {
  Gemm(CblasNoTrans, a, lda, b, ldb, c, ldc, m, n, k, accumulate);
}

namespace ref {

double Dot(const float* a, uint64_t a_step, const float* b, uint64_t b_step, uint64_t k) noexcept {
  double sum = 0;
  for (uint64_t i = 0; i < k; ++i) {
    sum += static_cast<double>(a[i * a_step]) * static_cast<double>(b[i * b_step]);
  }
  return sum;
}

}  // namespace ref
}  // namespace kv
