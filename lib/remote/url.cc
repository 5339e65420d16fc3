// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/remote/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"

namespace kv::remote {
namespace {

// The URLs that NameOfUrl has named. Names live as long as the process.
struct Names {
  std::mutex mutex;
  std::map<std::string, std::string> url_of, name_of;
  std::map<std::string, int> count;  // number of URLs with the same name, apart from the suffix
};

Names& AllNames() {
  static Names names;
  return names;
}

struct Notice {
  std::mutex mutex;
  std::function<void(const std::string&)> say;
};

Notice& WaitNotice() {
  static Notice notice;
  return notice;
}

bool StartsWithScheme(std::string_view text, std::string_view scheme) {
  return text.size() > scheme.size() && Lower(text.substr(0, scheme.size())) == scheme;
}

std::string WithoutSecrets(const std::string& url) {
  std::string name = url.substr(0, url.find_first_of("?#"));
  const size_t host = name.find("//") + 2;
  const size_t end_of_host = std::min(name.find('/', host), name.size());
  const size_t at = name.rfind('@', end_of_host);
  if (at != name.npos && at >= host && at < end_of_host) name.erase(host, at + 1 - host);
  return name;
}

}  // namespace

bool IsUrl(std::string_view text) {
  return StartsWithScheme(text, "http://") || StartsWithScheme(text, "https://");
}

std::string NameOfUrl(const std::string& url) {
  const std::string plain = WithoutSecrets(url);
  Names& names = AllNames();
  const std::lock_guard lock(names.mutex);
  const auto [at, added] = names.name_of.emplace(url, plain);
  if (!added) return at->second;
  const int number = ++names.count[plain];
  if (number > 1) at->second = fmt::format("{} ({})", plain, number);
  names.url_of.emplace(at->second, url);
  return at->second;
}

std::string WithoutUrlSecrets(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    size_t begin = 0;
    while (begin < text.size() && !IsUrl(text.substr(begin))) ++begin;
    shown += text.substr(0, begin);
    text.remove_prefix(begin);
    size_t end = 0;
    const auto ends = [&] {
      return std::string_view(" \t\n'\"").find(text[end]) != std::string_view::npos ||
             (text[end] == ',' && IsUrl(text.substr(end + 1)));
    };
    while (end < text.size() && !ends()) ++end;
    if (end > 0) shown += WithoutSecrets(std::string(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return shown;
}

void SetWaitNotice(std::function<void(const std::string& line)> say) {
  const std::lock_guard lock(WaitNotice().mutex);
  WaitNotice().say = std::move(say);
}

void NotifyWait(const std::string& line) {
  const std::lock_guard lock(WaitNotice().mutex);
  if (WaitNotice().say) WaitNotice().say(line);
}

std::unique_ptr<RangeReader> OpenUrl(const std::string& name) {
  if (!IsUrl(name)) return nullptr;
  std::string url;
  {
    Names& names = AllNames();
    const std::lock_guard lock(names.mutex);
    const auto known = names.url_of.find(name);
    if (known == names.url_of.end()) {
      throw Error(Finding::kOpenFailed, "is a URL that the command line does not name")
          .Hint("a file that names a URL is not followed: give the URL itself")
          .File(WithoutSecrets(name));
    }
    url = known->second;
  }
  return OpenHttp(std::move(url));
}

namespace {

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::optional<ContentRange> ParseContentRange(std::string_view text) {
  text = Trimmed(text);
  if (!TakePrefix(text, "bytes ")) return std::nullopt;
  if (TakePrefix(text, "*/")) {
    const std::optional<uint64_t> total = ParseNumber<uint64_t>(text);
    if (!total) return std::nullopt;
    return ContentRange{0, 0, *total};
  }
  const std::optional<uint64_t> first = TakeNumber<uint64_t>(text);
  if (!first || !TakePrefix(text, "-")) return std::nullopt;
  const std::optional<uint64_t> last = TakeNumber<uint64_t>(text);
  if (!last || !TakePrefix(text, "/")) return std::nullopt;
  const std::optional<uint64_t> total = ParseNumber<uint64_t>(text);
  if (!total || *first > *last || *last >= *total) return std::nullopt;
  return ContentRange{*first, *last - *first + 1, *total};
}

void Answer::TakeLine(std::string_view line) {
  if (line.starts_with("HTTP/")) {
    *this = {};
    const size_t space = line.find(' ');
    std::string_view rest = space == line.npos ? "" : line.substr(space + 1);
    const uint64_t code = TakeNumber<uint64_t>(rest).value_or(0);
    status = code < 1000 ? static_cast<int>(code) : 0;
    return;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return;
  const std::string name = Lower(line.substr(0, colon));
  const std::string_view value = Trimmed(line.substr(colon + 1));
  if (name == "content-range") range = ParseContentRange(value);
  if (name == "content-length") content_length = ParseNumber<uint64_t>(value);
  if (name == "etag") etag = value;
  if (name == "last-modified") last_modified = value;
  if (name == "retry-after") {
    // The other form, a date, is not supported. A number beyond 64 bits counts as the largest.
    const bool is_number = !value.empty() && value.find_first_not_of("0123456789") == value.npos;
    retry_after_s = is_number ? ParseNumber<uint64_t>(value).value_or(UINT64_MAX) : 0;
  }
}

bool Version::can_be_asked_for() const { return !etag.empty() && !etag.starts_with("W/"); }

bool Version::Differs(const Answer& answer) const {
  if (answer.range && answer.range->total != bytes) return true;
  if (!etag.empty() || !answer.etag.empty()) return answer.etag != etag;
  return answer.last_modified != last_modified;
}

double Patience::WaitAfter(int failures, double by_chance, uint64_t retry_after_s) const {
  const double doubled = first_wait_s * std::exp2(failures - 1) * by_chance;
  return std::max(std::min(doubled, longest_wait_s),
                  std::min(static_cast<double>(retry_after_s), longest_asked_s));
}

bool IsTransient(int status) {
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
         status == 504;
}

}  // namespace kv::remote
