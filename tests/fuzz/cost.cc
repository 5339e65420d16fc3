// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The compiler calls __sanitizer_cov_trace_pc in every basic block of instrumented code; the
// allocator of AddressSanitizer calls the hook.
#include "tests/fuzz/cost.h"

#ifdef KVTOOL_COUNT_STEPS
#include <atomic>

// Functions of AddressSanitizer, for which GCC installs no header.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                         void (*)(const volatile void*));

namespace {

std::atomic<bool> counting = false;
std::atomic<uint64_t> steps = 0, allocated = 0;

void CountAllocation(const volatile void*, size_t bytes) {
  if (counting.load(std::memory_order_relaxed)) {
    allocated.fetch_add(bytes, std::memory_order_relaxed);
  }
}
void IgnoreRelease(const volatile void*) {}

}  // namespace

extern "C" void __sanitizer_cov_trace_pc() {
  if (counting.load(std::memory_order_relaxed)) steps.fetch_add(1, std::memory_order_relaxed);
}

namespace kv::fuzz {

bool CostIsCounted() { return true; }

void StartCost() {
  static const int hooked =
      __sanitizer_install_malloc_and_free_hooks(CountAllocation, IgnoreRelease);
  (void)hooked;
  steps = allocated = 0;
  counting = true;
}

Cost StopCost() {
  counting = false;
  return {steps, allocated};
}

}  // namespace kv::fuzz

#else

namespace kv::fuzz {

bool CostIsCounted() { return false; }
void StartCost() {}
Cost StopCost() { return {}; }

}  // namespace kv::fuzz

#endif
