// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/kvf/kvf.h"

#include <fmt/format.h>

#include "formats/format.h"
#include "formats/kvz/kvz.h"
#include "lib/core/frame/frame.h"
#include "lib/core/snapshot/layout.h"

namespace kv::kvf {
namespace {

// A frame that claims a higher ratio is verified before memory is allocated.
constexpr uint64_t kPlausibleRatio = 64;
constexpr std::string_view kMagic = "\x89KVF\r\n\x1a\n";

std::string_view FrameRoleName(FrameRole role) {
  switch (role) {
    case FrameRole::kKey:
      return "K";
    case FrameRole::kValue:
      return "V";
    case FrameRole::kKeyAndValue:
      return "K and V side by side in each head";
    case FrameRole::kUnknown:
      break;
  }
  return "not stated";
}

// Returns half of each head: K is in the first half, V in the second.
KvTensor SliceHeadHalf(const KvTensor& both, bool second) {
  KvTensor half = both;
  half.head_dim /= 2;
  if (!second) return half;
  const uint64_t units = half.units_per_head();
  for (StridedPiece& piece : half.pieces) piece.data += piece.dim.Offset(units);
  return half;
}

bool CanBeHalved(const FrameDescription& description) {
  const DTypeInfo& info = Info(description.dtype);
  return description.head_dim % (2 * info.block_elements) == 0;
}

LayerKv BuildLayer(const FrameDescription& description, const std::byte* values) {
  LayerKv layer;
  const KvTensor whole =
      ContiguousTensor(values, description.dtype, description.tokens, description.heads,
                       description.head_dim, description.order);
  switch (description.role) {
    case FrameRole::kValue:
      layer.k.dtype = whole.dtype;
      layer.v = whole;
      break;
    case FrameRole::kKeyAndValue:
      if (CanBeHalved(description)) {
        layer.k = SliceHeadHalf(whole, false);
        layer.v = SliceHeadHalf(whole, true);
        break;
      }
      [[fallthrough]];
    default:
      layer.k = whole;
  }
  return layer;
}

void AddFacts(const FrameHeader& header, Snapshot& snapshot) {
  const FrameDescription& description = header.description;
  snapshot.facts.emplace_back("level", Name(header.level));
  if (!Name(header.codec).empty()) snapshot.facts.emplace_back("codec", Name(header.codec));
  snapshot.facts.emplace_back("holds", FrameRoleName(description.role));
  if (header.profile != Hash128Bytes{})
    snapshot.facts.emplace_back("profile", ProfileHashText(header.profile));
  if (description.context != Hash128Bytes{}) {
    snapshot.facts.emplace_back("context", Hex(description.context));
  }
  if (description.tag != 0) {
    snapshot.facts.emplace_back("tag", std::to_string(description.tag));
  }
  if (description.role == FrameRole::kUnknown) {
    snapshot.notes.push_back({"the frame does not say whether it holds K or V; it is read as K"});
  }
}

}  // namespace

Confidence Probe(const Source& source) {
  return AsText(BytesOfOnlyFile(source)).starts_with(kMagic) ? Confidence::kCertain
                                                             : Confidence::kNo;
}

Snapshot Open(Source source, const OpenOptions& options) {
  if (source.is_folder) {
    throw Error(Finding::kUsage,
                "is a folder: frames are read one by one, or as pages of one cache")
        .Hint("give --order FILE, a file with one of their names per line, or --order '*.kvf'");
  }
  const ByteSpan file = source.files.at(0).data->bytes();
  const FrameHeader header = ReadFrameHeader(file);
  const FrameDescription& description = header.description;
  if (file.size() > header.frame_bytes()) {
    throw Error(Finding::kTrailingBytes, "{} bytes follow the frame",
                file.size() - header.frame_bytes())
        .At(header.frame_bytes());
  }
  if (description.order == Order::kStorage) {
    throw Error(Finding::kGeometryMissing,
                "the frame holds {} bytes of {} and does not say how they are ordered",
                header.raw_bytes, Info(description.dtype).name)
        .Hint(
            "give encoders a shape (kvt_desc), or decode the frame with libkvtool or "
            "kvtool.decode");
  }
  if (header.raw_bytes > options.max_bytes) {
    throw Error(Finding::kLimit, "the frame decodes to {} bytes, more than --max-bytes",
                header.raw_bytes);
  }
  FrameCoder coder(header.level);
  if (header.profile != Hash128Bytes{}) {
    const ProfileName name{.file = "", .model = "", .hash = header.profile};
    coder.UseProfile(FindProfile(name, "frame", source.path, options));
  }
  // A header alone must not cause a large allocation: verifying needs only the memory of one
  // segment.
  if (header.raw_bytes / kPlausibleRatio > file.size()) coder.Verify(file, nullptr);
  Bytes raw(header.raw_bytes);
  coder.Decode(file, nullptr, raw);
  Snapshot snapshot;
  snapshot.spools.push_back(FileSource::FromBytes(std::move(raw), "frame"));
  snapshot.layers.push_back(BuildLayer(description, snapshot.spools[0]->bytes().data()));
  snapshot.format_version = fmt::format("{}", header.version);
  AddFacts(header, snapshot);
  snapshot.unpacked_bytes = header.raw_bytes;
  snapshot.source = std::move(source);
  return snapshot;
}

}  // namespace kv::kvf
