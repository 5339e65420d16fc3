// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/core/base/file.h"
#include "lib/core/base/hash.h"
#include "lib/core/codec/backends.h"
#include "lib/core/codec/chunk.h"

// Objects: pieces of states, each stored once and named by the hash of its bytes. Packs are the
// files that hold them (FORMAT.md).
namespace kv::store {

// BLAKE2b of the decoded bytes. States may come from an adversary, so the hash must resist the
// construction of a second content.
using ObjectId = Hash256Bytes;

constexpr uint64_t kMaxObjectBytes = 16 << 20;
constexpr uint64_t kPackHeaderBytes = 16, kObjectHeadBytes = 104;

// The header before the payload of an object.
struct ObjectHead {
  ObjectId id = {};
  CodecId codec = CodecId::kRaw;
  Effort level = Effort::kDefault;
  ChunkShape shape;
  uint64_t raw_bytes = 0, raw_hash = 0, payload_bytes = 0, payload_hash = 0;

  uint64_t stored_bytes() const { return kObjectHeadBytes + payload_bytes; }
};

Bytes PackHeader();
// Throws kTruncated, kBadMagic, kUnsupportedVersion.
void CheckPackHeader(const FileSource& pack);
Bytes HeadBytes(const ObjectHead& head);
// Reads and checks the head of the object at `offset`, whose payload must lie in the pack. Throws
// kTruncated, kBadMagic, kChecksum, kBadField, kUnknownDtype, kLimit.
ObjectHead ReadObjectHead(const FileSource& pack, uint64_t offset);
// Returns the first offset, from `from` on, of an object; the size of the pack if there is none.
uint64_t FindObject(const FileSource& pack, uint64_t from);
// Checks the hash of the payload without decoding it. Throws kChecksum.
void CheckPayload(const FileSource& pack, uint64_t offset, const ObjectHead& head);
// Decodes the object at `offset` and checks everything except its id. Throws as ReadObjectHead and
// DecodeChunk, kChecksum.
void DecodeObject(const FileSource& pack, uint64_t offset, const ObjectHead& head,
                  CodecScratch& scratch, Bytes& raw);

}  // namespace kv::store
