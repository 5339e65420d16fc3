// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/documents/document_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "lib/core/base/hash.h"
#include "lib/core/codec/chunk.h"

namespace kv {

std::string HashDigits(uint64_t hash) { return fmt::format("{:016x}", hash); }

const Fields<SizedFile>& SizedFileFields() {
  static const Fields<SizedFile> fields = {
      {"file", "Name of the input as it was given", &SizedFile::file},
      {"bytes", "Size of the input in bytes, all its files together", &SizedFile::bytes}};
  return fields;
}

uint64_t HashContent(const Source& source, bool with_names) {
  StreamingHash hash;
  constexpr uint64_t kStep = 8 << 20;
  source.NeedAll();
  for (const SourceFile& file : source.files) {
    if (with_names) {
      const std::string head = fmt::format("{}{}{}{}", file.name, '\0', file.data->size(), '\0');
      hash.Update(AsBytes(head));
    }
    for (uint64_t at = 0; at < file.data->size(); at += kStep) {
      const uint64_t size = std::min(kStep, file.data->size() - at);
      hash.Update(file.data->bytes().subspan(at, size));
      file.data->Drop(at, size);
    }
  }
  return hash.Digest();
}

namespace {

// The inputs that were hashed, up to a limit for programs that run forever, such as `store watch`.
struct HashedFiles {
  static constexpr size_t kMost = 10'000;
  std::mutex mutex;
  std::map<std::string, HashedFile> by_name;

  static HashedFiles& Instance() {
    static HashedFiles files;
    return files;
  }
};

}  // namespace

HashedFile HashedFile::Of(const Source& source) {
  HashedFile file{source.path, source.total_bytes(), HashDigits(HashContent(source))};
  HashedFiles& known = HashedFiles::Instance();
  const std::lock_guard lock(known.mutex);
  if (known.by_name.size() == HashedFiles::kMost) known.by_name.clear();
  known.by_name[file.file] = file;
  return file;
}

std::optional<HashedFile> HashedFile::Known(const std::string& path) {
  HashedFiles& known = HashedFiles::Instance();
  const std::lock_guard lock(known.mutex);
  const auto found = known.by_name.find(path);
  return found == known.by_name.end() ? std::nullopt : std::optional(found->second);
}

const Fields<HashedFile>& HashedFileFields() {
  static const Fields<HashedFile> fields = {
      {"file", "Name of the input as it was given", &HashedFile::file},
      {"bytes", "Size of the input in bytes, all its files together", &HashedFile::bytes},
      {"xxh3", "XXH3 hash (64 bits, 16 hex digits) of the input's bytes", &HashedFile::xxh3,
       kHashText}};
  return fields;
}

const Fields<NamedFile>& NamedFileFields() {
  static const Fields<NamedFile> fields = {
      {"role", "Role of the input in the command", &NamedFile::role, Absent()},
      {"file", "Name of the file as it was given", &NamedFile::file}};
  return fields;
}

std::optional<double> Saving::ratio() const {
  if (before == 0 || after == 0) return std::nullopt;
  return static_cast<double>(before) / static_cast<double>(after);
}

std::optional<double> Saving::removed_fraction() const {
  if (before == 0 || after == 0) return std::nullopt;
  return 1 - static_cast<double>(after) / static_cast<double>(before);
}

const Fields<Saving>& SavingFields() {
  static const Fields<Saving> fields = {
      {"ratio", "Bytes before / bytes after; null if there are no bytes", &Saving::ratio},
      {"removed_fraction",
       "Share of the bytes that is saved: 1 - after / before; null if there are no bytes",
       &Saving::removed_fraction}};
  return fields;
}

Value::List LevelChoices() {
  Value::List levels;
  for (const Effort level :
       {Effort::kCompat, Effort::kFast, Effort::kDefault, Effort::kHigh, Effort::kMax}) {
    levels.emplace_back(Name(level));
  }
  return levels;
}

RunCost RunCost::Of(bool deterministic, int threads, uint64_t bytes, double seconds) {
  if (deterministic) return {};
  return {Environment{threads}, Timing{static_cast<uint64_t>(seconds * 1e6),
                                       static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-9)}};
}

const Fields<RunCost>& RunCostFields() {
  static const Fields<RunCost::Environment> environment = {
      {"threads", "Number of threads that were used", &RunCost::Environment::threads, AtLeast(1)}};
  static const Fields<RunCost::Timing> timing = {
      {"elapsed_us", "Wall time of the work on this input, in microseconds",
       &RunCost::Timing::elapsed_us},
      {"mb_per_s", "Bytes of the source per second, in MB (1e6 bytes)", &RunCost::Timing::mb_per_s,
       AtLeast(0)}};
  static const Fields<RunCost> fields = {
      {"environment", "Machine and threads of the run; absent in deterministic output",
       &RunCost::environment, environment, Absent()},
      {"timing", "How long it took; absent in deterministic output", &RunCost::timing, timing,
       Absent()}};
  return fields;
}

}  // namespace kv
