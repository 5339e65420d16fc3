// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/llama_state/token_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace kv::llama_state {
namespace {

constexpr int32_t kNoToken = -1;  // also the first word of a record
constexpr uint32_t kRecordVersion = 1;

std::vector<int32_t> Ids(ByteSpan words) {
  std::vector<int32_t> ids(words.size() / sizeof(int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), words.data(), words.size());
  return ids;
}

TokenList ReadRecord(ByteReader in) {
  TokenList list;
  in.Skip(4, "record marker");
  const uint64_t version_at = in.offset();
  const uint32_t version = in.U32("record version");
  if (version != kRecordVersion) {
    throw Error(
        Finding::kUnsupportedVersion,
        fmt::format("server token record version {}, supported is {}", version, kRecordVersion))
        .At(version_at);
  }
  list.tokens = Ids(in.TakeArray(in.U32("text token count"), 4, "text tokens"));
  const uint64_t media_at = in.offset();
  const uint32_t media = in.U32("media count");
  const ByteSpan starts = in.TakeArray(media, 4, "media start indices");
  for (uint32_t i = 0; i < media; ++i) {
    const auto start = LoadLE<uint32_t>(starts.data() + 4 * uint64_t{i});
    if (start >= list.tokens.size() || list.tokens[start] != kNoToken) {
      throw Error(
          Finding::kBadField,
          fmt::format("media {} starts at token {}, which is not a media position", i, start))
          .At(media_at);
    }
  }
  for (uint32_t i = 0; i < media; ++i) in.Skip(in.U32("media length"), "media entry");
  const ByteSpan padding = in.Take(in.remaining(), "padding");
  if (padding.size() >= 4 ||
      std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; })) {
    throw Error(Finding::kTrailingBytes,
                fmt::format("{} bytes follow the record, up to 3 zeros may", padding.size()))
        .At(in.offset() - padding.size());
  }
  list.media_count = media;
  return list;
}

}  // namespace

TokenList ReadTokenList(ByteReader& in) {
  const uint32_t words = in.U32("token count");
  const uint64_t at = in.offset();
  const ByteSpan bytes = in.TakeArray(words, 4, "tokens");
  if (words == 0 || LoadLE<int32_t>(bytes.data()) != kNoToken) return {Ids(bytes), std::nullopt};
  try {
    return ReadRecord(ByteReader(bytes, at));
  } catch (Error& error) {
    throw error.In("server token record");
  }
}

void WriteTokenList(const std::vector<int32_t>& tokens, bool as_record, ByteWriter& out) {
  const auto count = static_cast<uint32_t>(tokens.size());
  if (as_record || (count > 0 && tokens[0] == kNoToken)) {
    out.U32(count + 4);
    out.I32(kNoToken);
    out.U32(kRecordVersion);
    out.U32(count);
    for (const int32_t token : tokens) out.I32(token);
    out.U32(0);  // media
    return;
  }
  out.U32(count);
  for (const int32_t token : tokens) out.I32(token);
}

}  // namespace kv::llama_state
