// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/gguf/rope_order.h"
#include "formats/llama_state/build.h"
#include "formats/llama_state/choose.h"
#include "formats/llama_state/llama_state.h"
#include "formats/llama_state/token_list.h"

namespace kv::llama_state {
namespace {

constexpr uint32_t kBlobMagic = 0xaf143cd8;  // in front of newer sequence blobs in memory

// The layouts by where they occur; FORMAT.md says which builds wrote them. Version 9 / 2 covers
// several, and only their consistency with the whole file tells which one it is.
constexpr std::string_view kBuildsE = "v0.4.0 and later";
constexpr Layout kSessionLayouts9[] = {
    {"AB", false, true, 0, 1, "2024-09 to 2025-07 (b3889 to b5640 seen)"},
    {"C", true, true, 0, 1, "2025-07 to 2026-01 (b6122 to b7698 seen)"},
    {"D", true, false, 0, 1, "2026-02 to 2026-08 (b8179 to b10361 seen)"},
    {"D", true, false, 8, 1, "2026-03 to 2026-08 (b8352 to b10361 seen), M-RoPE model"},
};
constexpr Layout kSequenceLayouts2[] = {
    {"A", false, false, 0, 0, "2024-08 to 2025-06 (b3543 to b4753 seen)"},
    {"B", false, false, 0, 1, "mid-2025 (b5640 seen)"},
    {"CD", true, false, 0, 1, "2025-07 to 2026-08 (b6122 to b10361 seen)"},
    {"D", true, false, 8, 1, "2026-03 to 2026-08 (b8352 to b10361 seen), M-RoPE model"},
};
constexpr Layout kLayoutsE[] = {
    {"E", true, false, 0, 1, kBuildsE},
    {"E", true, false, 12, 1, "v0.4.0 and later, M-RoPE or per-layer-embedding model"},
};
// Blobs have no version: every layout may be meant.
constexpr Layout kContextBlobLayouts[] = {
    kSessionLayouts9[0], kSessionLayouts9[1], {"DE", true, false, 0, 1, "2026-02 and later"},
    kSessionLayouts9[3], kLayoutsE[1],
};
constexpr Layout kSequenceBlobLayouts[] = {
    kSequenceLayouts2[0], kSequenceLayouts2[1], {"CDE", true, false, 0, 1, "2025-07 and later"},
    kSequenceLayouts2[3], kLayoutsE[1],
};

const FileSource& OnlyFile(const Source& source) {
  if (source.is_folder || source.files.size() != 1) {
    throw Error(Finding::kUnsupportedKind, "is a folder; a llama.cpp state is one file");
  }
  return *source.files[0].data;
}

std::string ReadArchitecture(ByteReader& in) {
  const uint64_t at = in.offset();
  const uint32_t length = in.U32("architecture name length");
  if (length == 0 || length > kMaxArchitecture) {
    throw Error(Finding::kBadField, fmt::format("architecture name of {} bytes, expected 1 to {}",
                                                length, kMaxArchitecture))
        .At(at);
  }
  const std::string name(in.Text(length, "architecture name"));
  if (std::any_of(name.begin(), name.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    throw Error(Finding::kBadText, fmt::format("architecture name '{}'", Escaped(name))).At(at);
  }
  return name;
}

[[noreturn]] void RefuseVersion(bool is_session, uint32_t version) {
  // Session versions 0 to 8; sequence files came with session version 5.
  constexpr std::string_view kEras[] = {
      "2023",
      "2023",
      "2023-11",
      "2023-12",
      "2024-01 to 2024-03",
      "2024-04",
      "2024-06 to 2024-07",
      "2024-07",
      "2024-08 to 2024-09",
  };
  const std::string kind = is_session ? "SESSION" : "SEQ";
  if (!is_session && version == 0) {
    throw Error(Finding::kBadVersion, "SEQ version 0 never existed").At(4);
  }
  std::string era = "newer than this program knows";
  if (is_session && version < std::size(kEras))
    era = fmt::format("llama.cpp of {}", kEras[version]);
  if (!is_session && version == 1) era = "llama.cpp of 2024-04 to 2024-07";
  throw Error(Finding::kUnsupportedVersion,
              fmt::format("llama.cpp {} version {} ({}); supported: {}", kind, version, era,
                          is_session ? "9 and 10" : "2 and 3"))
      .At(4)
      .Hint("--from opaque archives the bytes as they are");
}

// Heads from flags or a model file, which must be of the architecture that a SESSION names.
void ApplyModel(const ModelGeometry& geometry, Snapshot& snapshot) {
  const std::string& wanted = geometry.architecture;
  if (snapshot.model.empty()) snapshot.model = wanted;
  if (!wanted.empty() && snapshot.model != wanted) {
    throw Error(Finding::kInconsistent,
                fmt::format("a state of architecture {}, but {} is {}", snapshot.model,
                            geometry.source, Escaped(wanted)));
  }
  ApplyGeometry(geometry, snapshot);
}

Snapshot Finish(Source source, const OpenOptions& options, Body body, std::string container,
                TokenList list) {
  const Reading reading = ChooseReading(body, options.layout);
  Snapshot snapshot = Build(std::move(source), reading, body.scope);
  snapshot.model = body.architecture;
  snapshot.tokens = std::move(list.tokens);
  snapshot.format_version = fmt::format("{}, layout {}", container, reading.Word());
  snapshot.engine = "llama.cpp";
  snapshot.facts.emplace_back("builds", reading.layout->written_by);
  if (reading.layout->has_outputs) snapshot.storage["outputs"] = "logits, embeddings";
  if (list.media_count) {
    snapshot.facts.emplace_back("tokens",
                                fmt::format("server record, {} media", *list.media_count));
    snapshot.storage["tokens"] = *list.media_count == 0 ? "record" : "record with media";
  }
  if (options.geometry) ApplyModel(*options.geometry, snapshot);
  if (const auto order = RopeOrderOf(snapshot.model); order && order->llama == KeyPairs::kNone)
    snapshot.key_rotation = KeyRotation::kUnknown;  // GPT-2, MPT ...: there is no RoPE to apply
  SettleHadamard(snapshot, *reading.layout, options.rotated);
  return snapshot;
}

}  // namespace

Confidence Probe(const Source& source) {
  if (source.is_folder || source.files.size() != 1) return Confidence::kNo;
  const ByteSpan bytes = source.files[0].data->bytes();
  if (bytes.size() < 4) return Confidence::kNo;
  const auto magic = LoadLE<uint32_t>(bytes.data());
  return magic == kSessionMagic || magic == kSequenceMagic ? Confidence::kCertain : Confidence::kNo;
}

Snapshot Open(Source source, const OpenOptions& options) {
  ByteReader in(OnlyFile(source).bytes());
  const uint32_t magic = in.U32("magic");
  if (magic != kSessionMagic && magic != kSequenceMagic) {
    throw Error(Finding::kBadMagic,
                fmt::format("magic {:#010x}, expected {:#x} (SESSION) or {:#x} (SEQ)", magic,
                            kSessionMagic, kSequenceMagic))
        .At(0);
  }
  const bool is_session = magic == kSessionMagic;
  const uint32_t version = in.U32("version");
  const uint32_t newest = is_session ? 10 : 3;
  if (version != newest && version != newest - 1) RefuseVersion(is_session, version);
  TokenList list = ReadTokenList(in);
  std::string architecture = is_session ? ReadArchitecture(in) : "";
  std::span<const Layout> layouts = kLayoutsE;
  if (version != newest) {
    layouts = is_session ? std::span<const Layout>(kSessionLayouts9) : kSequenceLayouts2;
  }
  Body body{in, is_session ? Scope::kContext : Scope::kSequence, layouts, std::move(architecture)};
  return Finish(std::move(source), options, std::move(body),
                fmt::format("{} {}", is_session ? "SESSION" : "SEQ", version), std::move(list));
}

Snapshot OpenSeqBlob(Source source, const OpenOptions& options) {
  ByteReader in(OnlyFile(source).bytes());
  ByteReader prefix = in;
  if (prefix.remaining() >= 8 && prefix.U32("magic") == kBlobMagic) {
    prefix.I32("source sequence");
    in = prefix;
  }
  return Finish(std::move(source), options, {in, Scope::kSequence, kSequenceBlobLayouts, ""},
                "sequence blob", {});
}

Snapshot OpenCtxBlob(Source source, const OpenOptions& options) {
  ByteReader in(OnlyFile(source).bytes());
  std::string architecture = ReadArchitecture(in);
  return Finish(std::move(source), options,
                {in, Scope::kContext, kContextBlobLayouts, std::move(architecture)}, "context blob",
                {});
}

}  // namespace kv::llama_state
