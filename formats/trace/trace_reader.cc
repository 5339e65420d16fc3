// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "formats/npy/npy.h"
#include "formats/safetensors/safetensors.h"
#include "formats/torch/torch.h"
#include "formats/trace/trace.h"
#include "lib/core/base/error.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kNpy = ".npy";

bool IsStem(const std::string& path) { return path != "-" && !fs::exists(path); }

// The files DIR/STEM-*.npy, named without folder.
Source NpySet(const std::string& path) {
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
  const std::string prefix = fs::path(path).filename().string() + "-";
  Source source;
  source.path = path;
  source.is_folder = true;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(prefix, 0) != 0 || name.size() < kNpy.size() ||
        name.substr(name.size() - kNpy.size()) != kNpy) {
      continue;
    }
    source.files.push_back({name, FileSource::Open(entry.path())});
  }
  if (source.files.empty()) {
    throw std::move(
        Error(Finding::kOpenFailed, "no such file, and no npy set of this stem")
            .File(path)
            .Hint("a trace is a file, a folder, or DIR/STEM for DIR/STEM-L0-Q.npy ..."));
  }
  std::sort(source.files.begin(), source.files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  return source;
}

bool LooksLikeText(const Source& source) {
  const std::string_view text = AsText(source.files.at(0).data->bytes()).substr(0, 4096);
  const size_t first = text.find_first_not_of(" \t\r\n");
  return !source.is_folder && first != std::string_view::npos && text[first] == '{';
}

template <TensorFile (*Read)(Source, const OpenOptions&)>
AttentionTrace OpenArrays(Source source, const OpenOptions& options) {
  return TraceOfTensors(Read(std::move(source), options), "", options);
}

bool IsSafetensors(const Source& source) { return ProbeSafetensors(source) != Confidence::kNo; }
bool IsNpz(const Source& source) { return ProbeNpz(source) != Confidence::kNo; }
bool IsNpy(const Source& source) { return ProbeNpy(source) != Confidence::kNo; }

AttentionTrace OpenStream(Source source, const OpenOptions&) {
  return OpenBlockScores(source.files.front().data);
}

AttentionTrace OpenTorchTrace(Source source, const OpenOptions& options) {
  return TraceOfTorch(ReadTorch(std::move(source), options.max_bytes), options.batch);
}

// In the order of asking. The length that begins a safetensors file may look like a brace, so it is
// asked before text, and again as what an unknown file is taken for: its reader says what is wrong.
constexpr TraceCarrier kCarriers[] = {
    {"safetensors", "Q, K and probabilities as named tensors: a file or a folder", IsSafetensors,
     OpenArrays<ReadSafetensors>},
    {"block-scores", "JSON Lines: scores per block, a line per layer call", LooksLikeText,
     OpenStream},
    {"npz", "numpy archives of named arrays", IsNpz, OpenArrays<ReadNpz>},
    {"torch", "attentions as Hugging Face returns them, saved by torch.save", LooksLikeTorch,
     OpenTorchTrace},
    {"npy", "numpy arrays: a folder, or DIR/STEM for DIR/STEM-L0-Q.npy ...", IsNpy,
     OpenArrays<ReadNpy>},
};

}  // namespace

std::span<const TraceCarrier> TraceCarriers() { return kCarriers; }

Source OpenTraceFiles(const std::string& path, const OpenOptions& options) {
  return IsStem(path) ? NpySet(path) : Source::Open(path, options.max_bytes);
}

AttentionTrace OpenTrace(const std::string& path, const OpenOptions& options) {
  return OpenTrace(OpenTraceFiles(path, options), options);
}

AttentionTrace OpenTrace(Source source, const OpenOptions& options) {
  const std::string path = source.path;
  if (IsStem(path)) {
    TensorFile file = ReadNpy(std::move(source), options);
    file.format = "npy set";
    return TraceOfTensors(std::move(file), fs::path(path).filename().string(), options);
  }
  if (source.files.empty()) {
    throw std::move(Error(Finding::kMissingRecord, "an empty folder").File(path));
  }
  try {
    for (const TraceCarrier& carrier : kCarriers) {
      if (carrier.fits(source)) return carrier.open(std::move(source), options);
    }
    return OpenArrays<ReadSafetensors>(std::move(source), options);
  } catch (Error& error) {
    throw error.File(path);
  }
}

}  // namespace kv
