// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <zstd.h>

#include <array>
#include <cstring>
#include <string>

#include "lib/api/context.h"
#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/kernels/targets.h"

namespace {

using kv::ErrorCode;
using kv::Finding;
using kv::FindingInfo;

constexpr int kNumbers = 10000;

// "KV0000" to "KV9999", so that numbers of newer libraries have a text, too.
constexpr auto kIds = [] {
  std::array<std::array<char, 7>, kNumbers> ids{};
  for (int number = 0; number < kNumbers; ++number) {
    auto& id = ids[static_cast<size_t>(number)];
    id = {'K', 'V', '0', '0', '0', '0', '\0'};
    for (int digit = 5, rest = number; digit >= 2; --digit, rest /= 10) {
      id[static_cast<size_t>(digit)] = static_cast<char>('0' + rest % 10);
    }
  }
  return ids;
}();

const FindingInfo* Find(kvt_status status) {
  for (const FindingInfo& info : kv::AllFindings()) {
    if (-static_cast<kvt_status>(info.finding) == status) return &info;
  }
  return nullptr;
}

int FindFault(const FindingInfo& info) {
  if (info.finding == Finding::kCancelled) return KVT_FAULT_STOPPED;
  // The program searches for these files itself; a caller of the library has to pass them, and a
  // retry does not help.
  if (info.finding == Finding::kProfileMissing || info.finding == Finding::kReferenceMissing)
    return KVT_FAULT_CALLER;
  switch (info.code) {
    case ErrorCode::kUsage:
      return KVT_FAULT_CALLER;
    case ErrorCode::kInvalidData:
      return KVT_FAULT_DATA;
    case ErrorCode::kIo:
      return KVT_FAULT_IO;
    case ErrorCode::kUnsupported:
      return KVT_FAULT_UNSUPPORTED;
    case ErrorCode::kInternal:
      break;
  }
  return KVT_FAULT_INTERNAL;
}

}  // namespace

uint32_t kvt_version(void) { return KVT_VERSION; }

const char* kvt_build(void) {
  static const std::string text =
      fmt::format("kvtool {}.{}.{}, SIMD {}, zstd {}", KVT_VERSION / 10000, KVT_VERSION / 100 % 100,
                  KVT_VERSION % 100, kv::ActiveSimdTarget(), ZSTD_versionString());
  return text.c_str();
}

const char* kvt_explain(kvt_status status, int part) {
  if (part < KVT_EXPLAIN_ID || part > KVT_EXPLAIN_PAGE) return "";
  const bool is_id = part == KVT_EXPLAIN_ID;
  if (status == KVT_OK) return is_id ? kIds[0].data() : "success";
  if (status > 0 || status <= -kNumbers) return "not a status of this library";
  if (is_id) return kIds[static_cast<size_t>(-status)].data();
  const FindingInfo* info = Find(status);
  if (info == nullptr) return "a finding of a newer version";
  // The texts are literals, hence null-terminated.
  return part == KVT_EXPLAIN_SENTENCE ? info->summary.data() : info->explanation.data();
}

int kvt_fault(kvt_status status) {
  if (status == 0) return KVT_FAULT_NONE;
  if (const FindingInfo* info = Find(status)) return FindFault(*info);
  const int group = -status / 100;  // findings are numbered in groups of 100
  if (status > 0 || group >= 100) return KVT_FAULT_IO;
  if (group == 0) return KVT_FAULT_CALLER;
  if (group < 10) return KVT_FAULT_IO;
  if (group == 13) return KVT_FAULT_UNSUPPORTED;
  return group < 90 ? KVT_FAULT_DATA : KVT_FAULT_INTERNAL;
}

const char* kvt_codec_name(uint32_t codec) {
  if (codec == KVT_CODEC_SEVERAL) return "several";
  const kv::CodecRow* row =
      codec < KVT_CODEC_SEVERAL ? kv::FindCodec(static_cast<kv::CodecId>(codec)) : nullptr;
  return row == nullptr ? "unknown" : row->name.data();  // a literal, hence null-terminated
}

kvt_status kvt_hash128(const void* src, size_t n, uint8_t out[16]) {
  return kv::api::Caught(nullptr, [&] {
    kv::api::Require(out != nullptr, "out");
    std::memset(out, 0, sizeof(kv::Hash128Bytes));
    const kv::Hash128Bytes hash = kv::Hash128(kv::api::Span(src, n));
    std::memcpy(out, hash.data(), hash.size());
  });
}
