// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as the record of a state and as a pack of objects: what is accepted is written again as
// the same bytes, the rows of a tensor come back from their places, and objects decode or are
// refused.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lib/core/base/hash.h"
#include "lib/store/state.h"
#include "tests/fuzz/accepted.h"
#include "tests/fuzz/fuzz_repair.h"

namespace {

using namespace kv;
using namespace kv::store;

// A decompression bomb is valid, but takes long to fuzz.
constexpr uint64_t kMostBytes = 1 << 18;
constexpr size_t kMagicBytes = 8;

void RowsComeBack(const Extent& extent) {
  if (extent.kind != Extent::Kind::kTensor || extent.size() > kMostBytes) return;
  Bytes tensor(extent.size());
  uint64_t begin = 0;
  for (const Piece& piece : extent.pieces) {
    Bytes rows(extent.BytesOf(piece)), back(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(begin + i * 7 + 1);
    if (rows.empty()) return;
    ScatterRows(extent, rows, begin, piece.count, tensor);
    GatherRows(extent, tensor, begin, piece.count, back);
    if (back != rows) std::abort();
    const uint64_t end = EndOfPiece(extent, begin, 256);
    if (end <= begin || end > extent.tokens) std::abort();
    begin += piece.count;
  }
}

void AsRecord(ByteSpan input) {
  try {
    const StateRecord record = DecodeState(input);
    const Bytes again = Encode(record);
    if (!std::equal(again.begin(), again.end(), input.begin(), input.end())) std::abort();
    for (const StoredFile& file : record.files) {
      for (const Extent& extent : file.extents) RowsComeBack(extent);
    }
    ++fuzz::accepted;
  } catch (const Error&) {
  }
}

void AsPack(ByteSpan input) {
  const auto pack = FileSource::FromBytes(Bytes(input.begin(), input.end()), "fuzz");
  try {
    CheckPackHeader(*pack);
  } catch (const Error&) {
    return;
  }
  static CodecScratch scratch;
  Bytes raw;
  for (uint64_t at = FindObject(*pack, kPackHeaderBytes); at < pack->size();) {
    const ObjectHead head = ReadObjectHead(*pack, at);
    const Bytes again = HeadBytes(head);
    if (std::memcmp(again.data(), input.data() + at, again.size()) != 0) std::abort();
    try {
      if (head.raw_bytes <= kMostBytes) DecodeObject(*pack, at, head, scratch, raw);
      ++fuzz::accepted;
    } catch (const Error&) {
    }
    at = FindObject(*pack, at + head.stored_bytes());
  }
}

// Repairs the hashes of each object's payload and header; with `decoded` also that of the decoded
// content.
void RepairObject(Bytes& pack, uint64_t at, uint64_t payload_bytes, bool decoded) {
  constexpr size_t kRawBytesAt = 32, kRawHashAt = 40, kPayloadHashAt = 56, kHeadHashAt = 96;
  std::byte* head = pack.data() + at;
  const ByteSpan payload = ByteSpan(pack).subspan(at + kObjectHeadBytes, payload_bytes);
  const auto hash_head = [&] { StoreLE(head + kHeadHashAt, Hash64({head, kHeadHashAt})); };
  StoreLE(head + kPayloadHashAt, Hash64(payload));
  hash_head();
  if (!decoded || LoadLE<uint64_t>(head + kRawBytesAt) > kMostBytes) return;
  try {
    const auto file = FileSource::FromBytes(pack, "repaired");
    const ObjectHead read = ReadObjectHead(*file, at);
    Bytes raw(read.raw_bytes);
    CodecScratch scratch;
    DecodeChunk(read.codec, read.shape, payload, raw, scratch);
    StoreLE(head + kRawHashAt, Hash64(raw));
    hash_head();
  } catch (const Error&) {
    // If the payload does not decode, the stored hash of the content is left unchanged.
  }
}

}  // namespace

kv::Bytes FuzzRepair(kv::ByteSpan input, unsigned choice) {
  constexpr size_t kHashBytes = sizeof(uint64_t), kPayloadBytesAt = 48;
  Bytes file(input.begin(), input.end());
  if (file.size() < kMagicBytes + kHashBytes) return file;
  if (file[3] == std::byte{'S'}) {
    const size_t hashed = file.size() - kHashBytes;
    StoreLE(file.data() + hashed, Hash64(ByteSpan(file).first(hashed)));
    return file;
  }
  for (uint64_t at = kPackHeaderBytes; at + kObjectHeadBytes <= file.size();) {
    const uint64_t left = file.size() - at - kObjectHeadBytes;
    const uint64_t payload_bytes = LoadLE<uint64_t>(file.data() + at + kPayloadBytesAt);
    if (payload_bytes > left) break;
    RepairObject(file, at, payload_bytes, choice % 2 == 0);
    at += kObjectHeadBytes + payload_bytes;
  }
  return file;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteSpan input = std::as_bytes(std::span(data, size));
  AsRecord(input);
  AsPack(input);
  return 0;
}
