// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/dense/gemm.h"

#include <cblas.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <thread>
#include <vector>

namespace kv::gemm_test {
namespace {

std::vector<float> Values(uint64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace

// Sanitizers map memory, which NoMemory forbids.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// While it exists, malloc fails, unless the system ignores RLIMIT_AS, as qemu's user-mode emulation
// does: without a bound of its own the loop below would then take all memory of the machine.
class NoMemory {
 public:
  NoMemory() {
    constexpr size_t kMost = 1 << 28;
    taken_.reserve(1 << 20);
    ::getrlimit(RLIMIT_AS, &before_);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    ::setrlimit(RLIMIT_AS, &limit);
    size_t bytes = 0;
    for (const size_t size : {size_t{1} << 20, size_t{1} << 12, size_t{64}}) {
      while (taken_.size() < taken_.capacity() && bytes < kMost) {
        void* memory = std::malloc(size);
        if (memory == nullptr) break;
        taken_.push_back(memory);
        bytes += size;
      }
    }
    is_limited_ = bytes < kMost;
  }
  ~NoMemory() {
    ::setrlimit(RLIMIT_AS, &before_);
    for (void* memory : taken_) std::free(memory);
  }
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;

  bool is_limited() const { return is_limited_; }

 private:
  bool is_limited_ = false;
  rlimit before_ = {};
  std::vector<void*> taken_;
};

// OpenBLAS's small kernels for some CPUs allocate; on failure they wrote to address 0.
TEST_CASE("a product without memory throws or does without it", "[gemm]") {
  const uint64_t m = 8, n = 8, k = 512;  // small enough for the kernels that allocate
  const std::vector<float> a = Values(m * k, 1), b = Values(k * n, 2);
  std::vector<float> expected(m * n), c(m * n);
  GemmNN(a.data(), k, b.data(), n, expected.data(), n, m, n, k);
  bool threw = false, is_limited = false;
  {
    const NoMemory none;
    is_limited = none.is_limited();
    try {
      GemmNN(a.data(), k, b.data(), n, c.data(), n, m, n, k);
    } catch (const std::bad_alloc&) {
      threw = true;
    }
  }
  CHECK((threw || c == expected));
  if (!is_limited) WARN("RLIMIT_AS has no effect here: memory did not run out");
  GemmNN(a.data(), k, b.data(), n, c.data(), n, m, n, k);
  CHECK(c == expected);
}
#endif

TEST_CASE("matrix products are near to the double sums, whatever the strides", "[gemm]") {
  const struct {
    uint64_t m, n, k;
  } shapes[] = {{1, 1, 1}, {3, 5, 7}, {64, 33, 128}, {17, 128, 640}, {2, 3, 0}, {0, 3, 4}};
  for (const auto& [m, n, k] : shapes) {
    const uint64_t lda = k + 3, ldc = n + 2;
    const std::vector<float> a = Values(m * lda + 1, 1);
    for (const bool transposed : {true, false}) {
      const uint64_t ldb = (transposed ? k : n) + 1;
      const std::vector<float> b = Values((transposed ? n : k) * ldb + 1, 2);
      for (const bool accumulate : {false, true}) {
        std::vector<float> c(m * ldc, 2.0f);
        if (transposed) {
          GemmNT(a.data(), lda, b.data(), ldb, c.data(), ldc, m, n, k, accumulate);
        } else {
          GemmNN(a.data(), lda, b.data(), ldb, c.data(), ldc, m, n, k, accumulate);
        }
        for (uint64_t i = 0; i < m; ++i) {
          for (uint64_t j = 0; j < n; ++j) {
            const double expected =
                ref::Dot(a.data() + i * lda, 1, b.data() + (transposed ? j * ldb : j),
                         transposed ? 1 : ldb, k) +
                (accumulate ? 2.0 : 0.0);
            INFO(m << "x" << n << "x" << k << " at " << i << "," << j);
            REQUIRE(std::abs(c[i * ldc + j] - expected) < 1e-5 * (10 + std::sqrt(double(k)) * 10));
          }
          for (uint64_t j = n; j < ldc; ++j) REQUIRE(c[i * ldc + j] == 2.0f);  // padding untouched
        }
      }
    }
  }
}

// A threaded OpenBLAS starts threads before main, in every command, and can wait for them for ever
// at exit.
TEST_CASE("the matrix library has no threads", "[gemm]") { CHECK(openblas_get_parallel() == 0); }

#if defined(KVTOOL_WRAPS_BLAS) && defined(__x86_64__)
TEST_CASE("a processor that OpenBLAS does not know gets the kernels of its features", "[gemm]") {
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr || !__builtin_cpu_supports("avx2")) return;
  const std::string_view core = openblas_get_corename();
  CHECK(core != "Prescott");
  CHECK(core != "Barcelona");
}
#endif

TEST_CASE("products on several threads do not disturb each other", "[gemm]") {
  constexpr uint64_t kM = 64, kN = 160, kK = 16;
  std::atomic<uint64_t> wrong = 0;
  const auto work = [&](uint32_t seed) {
    const std::vector<float> a = Values(kM * kK, seed), b = Values(kN * kK, seed + 100);
    std::vector<float> first(kM * kN), c(kM * kN);
    for (int i = 0; i < 500; ++i) {
      std::vector<float>& out = i == 0 ? first : c;
      GemmNT(a.data(), kK, b.data(), kK, out.data(), kN, kM, kN, kK);
      if (i > 0 && std::memcmp(first.data(), c.data(), c.size() * sizeof(float)) != 0) ++wrong;
    }
  };
  std::vector<std::jthread> threads;
  for (uint32_t t = 0; t < 64; ++t) threads.emplace_back(work, t);
  threads.clear();
  CHECK(wrong == 0);
}

}  // namespace kv::gemm_test
