// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/pages.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <filesystem>
#include <iterator>
#include <map>
#include <set>

#include "formats/raw/raw.h"
#include "formats/words.h"
#include "lib/core/snapshot/concatenate.h"

namespace kv {
namespace {

constexpr uint64_t kLargestOrder = 64 << 20;

bool IsPattern(std::string_view text) { return text.find('*') != text.npos; }

// Without its ending; ".kvcache.safetensors" is one. Names of models have dots too.
std::string_view Stem(std::string_view name) {
  std::string_view stem = LastPart(name);
  stem = stem.substr(0, stem.rfind('.'));
  if (stem.ends_with(".kvcache")) stem.remove_suffix(std::string_view(".kvcache").size());
  return stem;
}

bool Fits(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0 ||
         ::fnmatch(pattern.c_str(), std::string(LastPart(name)).c_str(), 0) == 0;
}

class PageList {
 public:
  // The order may lie in the folder itself; it is no page.
  PageList(const Source& folder, const std::string& order) : folder_(folder) {
    std::error_code ignored;
    for (const SourceFile& file : folder.files) {
      if (!std::filesystem::equivalent(order, std::filesystem::path(folder.path) / file.name,
                                       ignored)) {
        files_.push_back(&file);
        by_last_part_.emplace(LastPart(file.name), &file);
        by_stem_.emplace(Stem(file.name), &file);
      }
    }
  }

  void Add(const std::string& line) {
    const size_t before = pages_.size();
    if (IsPattern(line)) {
      for (const SourceFile* file : files_) {
        if (Fits(line, file->name)) AddFile(*file);
      }
    } else {
      AddFile(Named(line));
    }
    if (pages_.size() == before) {
      throw Error(Finding::kMissingRecord,
                  fmt::format("--order: no file is named '{}'", Escaped(line, 120)));
    }
  }

  std::vector<const SourceFile*> Release() { return std::move(pages_); }

 private:
  const SourceFile& Named(const std::string& line) const {
    if (const SourceFile* exact = folder_.Find(line)) return *exact;
    for (const auto* names : {&by_last_part_, &by_stem_}) {
      const auto [first, end] = names->equal_range(line);
      if (first == end) continue;
      if (std::next(first) == end) return *first->second;
      throw Error(Finding::kUsage,
                  fmt::format("--order: '{}' could be '{}' or '{}'", Escaped(line, 120),
                              Escaped(first->second->name, 120),
                              Escaped(std::next(first)->second->name, 120)));
    }
    throw Error(Finding::kMissingRecord,
                fmt::format("--order: no file is named '{}'", Escaped(line, 120)));
  }

  void AddFile(const SourceFile& file) {
    if (!seen_.insert(&file).second) {
      throw Error(Finding::kUsage,
                  fmt::format("--order names '{}' twice", Escaped(file.name, 120)));
    }
    pages_.push_back(&file);
  }

  const Source& folder_;
  std::vector<const SourceFile*> files_, pages_;
  std::multimap<std::string_view, const SourceFile*> by_last_part_, by_stem_;
  std::set<const SourceFile*> seen_;
};

}  // namespace

std::vector<const SourceFile*> InOrder(const Source& folder, const std::string& order) {
  PageList pages(folder, order);
  if (IsPattern(order)) {
    pages.Add(order);
    return pages.Release();
  }
  const auto file = FileSource::OpenSmall(order, kLargestOrder, "an order of pages");
  std::string_view text = AsText(file->bytes());
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (!line.empty()) pages.Add(std::string(line));
  }
  std::vector<const SourceFile*> list = pages.Release();
  if (list.empty()) throw Error(Finding::kUsage, fmt::format("--order {}: is empty", order));
  return list;
}

}  // namespace kv
