// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by llama_state_reader.cc, llama_state_writer.cc, cache_blob.cc

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/format.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/dtype.h"

namespace kv::llama_state {

// llama.cpp session and sequence files, and the two in-memory blobs (FORMAT.md). Rows are returned
// as one head (heads_known = false), because the file does not say how they divide.
Confidence Probe(const Source& source);
// Opens a file whose header has the magic ggsn or ggsq.
Snapshot Open(Source source, const OpenOptions& options);
// Open the results of llama_state_seq_get_data and llama_state_get_data; only --from selects these.
Snapshot OpenSeqBlob(Source source, const OpenOptions& options);
Snapshot OpenCtxBlob(Source source, const OpenOptions& options);

// Writes the state of one sequence (SEQ), in the layout that storage["version"] names or the
// newest; V is ordered as storage["v_order"] says. Before writing anything, it throws
// kUnsupportedLayout, kUnsupportedDtype and the like for what the format cannot express.
void WriteSequence(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
// Writes the whole context (SESSION), with every sequence; needs the architecture's name.
void WriteSession(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
std::vector<std::string> NotKept(const Snapshot& snapshot);

inline constexpr uint32_t kSessionMagic = 0x6767736e;  // "nsgg" in the file
inline constexpr uint32_t kSequenceMagic = 0x67677371;
inline constexpr uint64_t kMaxArchitecture = 64;
inline constexpr uint32_t kMaxStreams = 256;
inline constexpr uint32_t kMaxSequencesPerCell = 256;
inline constexpr uint32_t kMaxLayers = 4096;
inline constexpr uint64_t kMaxRowElements = uint64_t{1} << 24;
inline constexpr size_t kMaxCaches = 3;  // full attention, index, sliding window

enum class Scope { kContext, kSequence };

// The layout in which a family of builds writes states. Several rows of FORMAT.md's table can share
// one layout.
struct Layout {
  std::string_view letters;     // letters of the layouts that have these bytes
  bool has_streams = true;      // a stream count in front of each cache
  bool has_outputs = false;     // SESSION: output rows, logits, embeddings before the caches
  uint32_t extension = 0;       // bytes per cell between the id count and the ids
  uint32_t ids = 1;             // SEQ: sequence ids per cell
  std::string_view written_by;  // the builds, for messages

  // Returns "A/B", "D'": the values of --layout. The prime means that cells have an extension.
  std::string Word() const;
};

// Type and width of the rows of one layer, the same in every stream.
struct RowShape {
  DType dtype = DType::kF16;
  uint32_t channels = 0;
  bool operator==(const RowShape&) const = default;
};

// Offsets of one stream's parts in the file.
struct Stream {
  uint32_t cells = 0;
  uint64_t cells_offset = 0;
  std::vector<uint64_t> k_offsets, v_offsets;  // per layer
  bool operator==(const Stream&) const = default;
};

// One attention cache.
struct Cache {
  bool has_v = true;
  bool v_transposed = false;
  std::vector<RowShape> k, v;  // per layer; empty if all streams are empty
  std::vector<Stream> streams;
  bool operator==(const Cache&) const = default;
};

// A recurrent state (Mamba, RWKV, gated delta nets) after the caches, recognised by its grammar;
// its bytes are not read.
struct RecurrentState {
  uint32_t cells = 0, layers = 0, states = 0;
  uint64_t offset = 0, bytes = 0;
  bool operator==(const RecurrentState&) const = default;
};

// One complete interpretation of the caches of a file.
struct Reading {
  const Layout* layout = nullptr;
  std::vector<Cache> caches;
  std::optional<RecurrentState> recurrent = std::nullopt;  // only hybrid models have it

  // Returns the layout's name; if any cache lacks V, also what each cache has: "E", "E-k".
  std::string Word() const;
};

// Finds all interpretations of the rest of a file under one layout, checked as strictly as possible
// without reading tensor data. Keeps the failures that got furthest, to report if nothing fits.
class Search {
 public:
  // Adds interpretations that fit to `readings`.
  void Try(ByteReader in, const Layout& layout, Scope scope);
  // Records a failure after `reached` parts of K and V, and the offset.
  void Failed(Error error, const Layout& layout, std::pair<uint64_t, uint64_t> reached);

  std::vector<Reading> readings;
  // Interpretations as hybrid models: caches followed by a recurrent state.
  std::vector<Reading> hybrids;
  std::optional<Error> furthest;

 private:
  std::pair<uint64_t, uint64_t> reached_;

  void Extend(const ByteReader& in, const Layout& layout, Scope scope, std::vector<Cache>& before);
};

// One cell record at a time: position, extension, then the ids.
struct CellRecord {
  int32_t position;
  ByteSpan extension, ids;  // i32 each
};
CellRecord ReadCell(ByteReader& in, const Layout& layout, Scope scope);

// Reads ggml's number of a cache type. Throws kUnknownDtype.
DType ReadType(ByteReader& in);
// Returns the number to write, or nothing if llama.cpp has no cache of this type.
std::optional<int32_t> TypeNumber(DType dtype);

// Returns the recurrent state that the rest of the bytes form, if they do.
std::optional<RecurrentState> FindRecurrent(ByteReader in, Scope scope);

// The token field of a file: a plain list of ids, or the byte record that newer servers write for
// prompts with images or audio.
struct TokenList {
  std::vector<int32_t> tokens;          // the text tokens of a record, with -1 at media positions
  std::optional<uint32_t> media_count;  // set only for a record
};
TokenList ReadTokenList(ByteReader& in);

// Writes the field, count first. Writes a record without media if the source had a record, or if a
// plain list would look like one.
void WriteTokenList(const std::vector<int32_t>& tokens, bool as_record, ByteWriter& out);

// A layout to write; FORMAT.md has the table.
struct Target {
  char letter = 'E';
  uint32_t session_version = 10, sequence_version = 3;
  bool has_streams = true;
  bool has_outputs = false;      // SESSION
  bool has_sequence_id = true;   // SEQ: true if each cell has a sequence id
  uint32_t extension_words = 0;  // words per cell, if the model has any
};

// Returns the layout that --target-version names: a layout's letter, or a build such as "b6122" or
// "v0.5.0"; empty is the newest. Throws kUsage for builds between two layouts, because it is
// unknown which one they write.
Target FindTarget(std::string_view version);

}  // namespace kv::llama_state
