// SPDX-License-Identifier: Apache-2.0
// A prefix cache in C++: rows of K are stored under a key and come back exactly or not at all.
#include <cstdio>
#include <cstring>
#include <map>

#include "kvtool.hpp"

// One per thread.
class PrefixCache {
 public:
  void Put(const kvtool::Key& key, kvt_desc desc, kvtool::Bytes rows) {
    std::memcpy(desc.context, key.data(), key.size());
    frames_[key] = context_.Encode(desc, rows);
  }

  // Returns false if the entry is missing, damaged or foreign; `rows` must then be computed.
  bool Get(const kvtool::Key& key, kvtool::MutableBytes rows) {
    const auto found = frames_.find(key);
    if (found == frames_.end()) return false;
    if (context_.TryDecode(found->second, key, rows) == 0) return true;
    frames_.erase(found);
    return false;
  }

  kvt_stats Stats() const { return context_.Stats(); }
  std::byte& Spoil(const kvtool::Key& key) { return frames_.at(key)[300]; }

 private:
  kvtool::Context context_{KVT_FAST};
  std::map<kvtool::Key, std::vector<std::byte>> frames_;
};

int main() {
  constexpr uint64_t kTokens = 256;
  constexpr uint32_t kHeads = 8, kDim = 128;
  std::vector<std::byte> rows(kTokens * kHeads * kDim * 2), back(rows.size());
  for (size_t i = 1; i < rows.size(); i += 2) rows[i] = std::byte{0x3f};
  for (size_t i = 0; i < rows.size(); i += 2)
    rows[i] = static_cast<std::byte>(i * 2654435761u >> 25);

  PrefixCache cache;
  const kvtool::Key system_prompt = kvtool::MakeKey("model 1, layer 0, K, the system prompt");
  const kvtool::Key other = kvtool::MakeKey("model 1, layer 0, K, another prompt");
  cache.Put(system_prompt, kvtool::Describe(KVT_BF16, kTokens, kHeads, kDim), rows);
  bool ok = cache.Get(system_prompt, back) && back == rows && !cache.Get(other, back);
  cache.Spoil(system_prompt) ^= std::byte{1};
  ok = ok && !cache.Get(system_prompt, back) && !cache.Get(system_prompt, back);
  const kvt_stats stats = cache.Stats();
  std::printf("%llu bytes held in %llu; %s\n", static_cast<unsigned long long>(stats.raw_bytes),
              static_cast<unsigned long long>(stats.stored_bytes),
              ok ? "hits are exact, the rest are misses" : "something is wrong");
  return ok ? 0 : 1;
}
