// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// One function of the libstdc++ of GCC 13, std::string::_M_replace_cold, for systems with an older
// one: LMCache's native part needs it. scripts/check/engines.sh preloads this where the engine does
// not load without.
#include <cstddef>
#include <cstdlib>
#include <cstring>

// Replaces old_size characters at `at` by those of `with`, which may be part of the same string;
// `tail` characters follow.
extern "C" __attribute__((visibility("default"))) void
ReplaceCold(void* self, char* at, size_t old_size, const char* with, size_t new_size, size_t tail) asm(
    "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE15_M_replace_coldEPcmPKcmm");

void ReplaceCold(void*, char* at, size_t old_size, const char* with, size_t new_size, size_t tail) {
  char* copy = static_cast<char*>(std::malloc(new_size + 1));
  if (copy == nullptr) std::abort();
  std::memcpy(copy, with, new_size);
  if (tail != 0 && old_size != new_size) std::memmove(at + new_size, at + old_size, tail);
  std::memcpy(at, copy, new_size);
  std::free(copy);
}
