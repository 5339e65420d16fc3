// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/remote/url.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "lib/core/base/error.h"

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
  if (text.size() <= scheme.size()) return false;
  for (size_t i = 0; i < scheme.size(); ++i) {
    const char c = text[i];
    if ((c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c) != scheme[i]) return false;
  }
  return true;
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

}  // namespace kv::remote
