// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "formats/zip/zip.h"
#include "tests/support/temp_dir.h"

namespace kv::test {

// A torch zip archive of the given members, in its own folder.
class TorchArchive {
 public:
  TorchArchive& Add(const std::string& name, const std::string& bytes) {
    members_.emplace_back(name, bytes);
    return *this;
  }
  Source Open() const {
    const std::filesystem::path path = folder_ / "archive.pt";
    AtomicFile file(path, Overwrite::kAllow);
    ZipWriter zip(file);
    for (const auto& [name, bytes] : members_) zip.Add(name, AsBytes(bytes));
    zip.Finish();
    file.Commit();
    return Source::Open(path);
  }

 private:
  TempDir folder_;
  std::vector<std::pair<std::string, std::string>> members_;
};

// Used instead of operator+, for which GCC 12 warns of overlaps that cannot happen.
inline std::string Cat(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (const std::string_view part : parts) out.append(part);
  return out;
}

// Raw bytes of values, as in a storage or an array.
template <typename T>
std::string RawBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::string PickleText(std::string_view text) {
  const auto size = static_cast<uint32_t>(text.size());
  return Cat({"X", {reinterpret_cast<const char*>(&size), 4}, text});
}

inline std::string PickleInt(int64_t value) {
  return Cat({"\x8a\x08", {reinterpret_cast<const char*>(&value), 8}});
}

inline std::string PickleInts(const std::vector<int64_t>& values) {
  std::string out = "(";
  for (const int64_t value : values) out += PickleInt(value);
  return out += 't';
}

// Pushes ('storage', type, key, 'cpu', numel) and appends BINPERSID.
inline std::string PickleStorage(std::string_view type, std::string_view key, int64_t numel) {
  return Cat({"(", PickleText("storage"), "ctorch\n", type, "\n", PickleText(key),
              PickleText("cpu"), PickleInt(numel), "tQ"});
}

inline std::string PickleTensor(std::string_view storage, int64_t offset,
                                const std::vector<int64_t>& size,
                                const std::vector<int64_t>& stride) {
  return Cat({"ctorch._utils\n_rebuild_tensor_v2\n(", storage, PickleInt(offset), PickleInts(size),
              PickleInts(stride), "\x89", "ccollections\nOrderedDict\n)RtR"});
}

}  // namespace kv::test
