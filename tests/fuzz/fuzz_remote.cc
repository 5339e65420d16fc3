// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any lines as the header of a server's answer, and each as a URL: ranges are consistent, and names
// contain neither user nor query.
#include <cstdint>
#include <cstdlib>

#include "lib/remote/url.h"
#include "tests/fuzz/accepted.h"

namespace {

using namespace kv;

void Require(bool holds) {
  if (!holds) std::abort();
}

// Registered names stay in memory until the process ends, and a fuzzer runs for hours.
constexpr uint64_t kMostNamedBytes = 256 << 20;

void AsUrl(const std::string& text) {
  static uint64_t named_bytes = 0;
  if (!remote::IsUrl(text) || named_bytes > kMostNamedBytes) return;
  named_bytes += text.size();
  const std::string name = remote::NameOfUrl(text);
  Require(remote::IsUrl(name) || name.find("//") + 2 >= name.size());
  Require(name.find_first_of("?#") == name.npos);
  const size_t host = name.find("//") + 2;
  Require(name.substr(host, name.find('/', host) - host).find('@') == name.npos);
  Require(remote::NameOfUrl(text) == name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  remote::Answer answer;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    answer.TakeLine(line);
    AsUrl(std::string(line));
    begin = end + 1;
  }
  Require(answer.status >= 0 && answer.status < 1000);
  const double waits = remote::Patience().WaitAfter(1, 1, answer.retry_after_s);
  Require(waits > 0 && waits <= 60);
  if (answer.range) {
    const remote::ContentRange& range = *answer.range;
    Require(range.first <= range.total && range.bytes <= range.total - range.first);
    ++fuzz::accepted;
  }
  const remote::Version version{answer.range ? answer.range->total : 0, answer.etag,
                                answer.last_modified};
  Require(!version.Differs(answer));
  if (version.can_be_asked_for()) ++fuzz::accepted;
  return 0;
}
