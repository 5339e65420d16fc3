// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by trace_reader.cc, trace_tensors.cc

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/format.h"
#include "lib/core/base/tensor.h"
#include "lib/core/snapshot/attention_trace.h"

namespace kv {

// Limits on the claims of a trace.
constexpr uint64_t kMostTracePositions = uint64_t{1} << 31;
constexpr uint64_t kMostTraceHeads = 65536, kMostTraceLayers = 65536;

// A form in which traces are stored.
struct TraceCarrier {
  std::string_view id;
  std::string_view summary;
  bool (*fits)(const Source& source);
  AttentionTrace (*open)(Source source, const OpenOptions& options);
  // True if the metadata must say that it is a trace, because other files of named tensors look
  // alike.
  bool needs_mark = false;
};
// Returns the forms in the order of detection.
std::span<const TraceCarrier> TraceCarriers();

// Opens a trace in any form: safetensors (file or folder), npz, an npy set DIR/STEM, torch files, a
// JSON Lines stream of block scores. Only headers are read. Throws as FORMAT.md says.
AttentionTrace OpenTrace(const std::string& path, const OpenOptions& options);
// Open a trace in two steps, for callers that need the files too.
Source OpenTraceFiles(const std::string& path, const OpenOptions& options);
AttentionTrace OpenTrace(Source source, const OpenOptions& options);

// Makes a trace of named arrays with kvtool's names, or with those of an npy set with this stem.
AttentionTrace TraceOfTensors(TensorFile file, const std::string& stem,
                              const OpenOptions& options = {});

// Makes a trace of Hugging Face attentions: a tuple over layers, or over steps of layers. Uses one
// batch row, which must be named if there are several.
AttentionTrace TraceOfTorch(TensorFile file, std::optional<uint64_t> batch);

// Opens a stream of block scores: a header line, then one line per layer call.
AttentionTrace OpenBlockScores(std::shared_ptr<const FileSource> source);

}  // namespace kv
