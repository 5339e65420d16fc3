// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <curl/curl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lib/core/base/error.h"
#include "lib/core/base/file.h"
#include "lib/remote/url.h"

namespace kv::remote {
namespace {

// libcurl, loaded when the first URL is opened: a program that reads only files does not load the
// thirty libraries behind it, and runs where they are not installed.
struct Curl {
  CURL* (*easy_init)();
  void (*easy_cleanup)(CURL*);
  CURLcode (*easy_setopt)(CURL*, CURLoption, ...);
  CURLcode (*easy_perform)(CURL*);
  CURLcode (*easy_getinfo)(CURL*, CURLINFO, ...);
  const char* (*easy_strerror)(CURLcode);
  curl_slist* (*slist_append)(curl_slist*, const char*);
  void (*slist_free_all)(curl_slist*);
};

template <typename Function>
void Take(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function == nullptr) {
    throw Error(Finding::kOpenFailed, std::string("libcurl has no ") + name);
  }
}

Curl Load() {
  void* library = nullptr;
  // The variants differ in their TLS library.
  for (const char* name :
       {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4", "libcurl.4.dylib"}) {
    library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    throw Error(Finding::kOpenFailed, "reading URLs needs libcurl, which is not installed")
        .Hint("install it (Debian: apt install libcurl4), or fetch the file: curl -O URL");
  }
  Curl curl = {};
  Take(library, "curl_easy_init", curl.easy_init);
  Take(library, "curl_easy_cleanup", curl.easy_cleanup);
  Take(library, "curl_easy_setopt", curl.easy_setopt);
  Take(library, "curl_easy_perform", curl.easy_perform);
  Take(library, "curl_easy_getinfo", curl.easy_getinfo);
  Take(library, "curl_easy_strerror", curl.easy_strerror);
  Take(library, "curl_slist_append", curl.slist_append);
  Take(library, "curl_slist_free_all", curl.slist_free_all);
  CURLcode (*global_init)(long) = nullptr;  // NOLINT: libcurl's own type
  Take(library, "curl_global_init", global_init);
  if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    throw Error(Finding::kNoResources, "libcurl cannot be initialised");
  }
  return curl;
}

// Throws kOpenFailed, which says what to install.
const Curl& LoadCurl() {
  static const Curl curl = Load();
  return curl;
}

constexpr long kConnectSeconds = 15, kStalledSeconds = 30, kMostRedirects = 5;  // NOLINT: libcurl's

std::atomic<uint64_t> requests_made = 0, bytes_got = 0;

// Options of libcurl before 7.85, by number, because newer headers mark the names as deprecated.
constexpr auto kProtocols = static_cast<CURLoption>(181),
               kRedirectProtocols = static_cast<CURLoption>(182);

// Returns true for failures of the connection, not of the server. A server that was never reached
// may not exist.
bool IsTransient(CURLcode code, bool was_met) {
  switch (code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_SSL_CONNECT_ERROR:
      return was_met;
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    default:
      return false;
  }
}

Error Refused(int status) {
  Error error(Finding::kOpenFailed, "the server answers {}", status);
  if (status == 401 || status == 403) error.Hint("a presigned URL may have expired");
  if (status == 404 || status == 410) error.Hint("the server has no file at this URL");
  return error;
}

// Returns the error after the last attempt.
Error MakeGiveUpError(Finding finding, int tries, int status, const char* connection) {
  return Error(finding, fmt::format("after {} tries: {}", tries,
                                    status >= 400 ? fmt::format("the server answers {}", status)
                                                  : connection));
}

Error Changed() {
  return Error(Finding::kReadFailed, "changed on the server while it was read")
      .Hint("run again: parts of two versions were read");
}

// One object behind a URL. The version of the first answer counts; an answer of another version is
// an error. Uses only GET, because presigned URLs allow nothing else, and one range per request.
class HttpReader : public RangeReader {
 public:
  // Requests the last bytes, which tell the size, and keeps them: that is where an archive has its
  // index. `url` may be secret and occurs in no message.
  HttpReader(std::string url, Patience patience)
      : url_(std::move(url)), patience_(patience), curl_(LoadCurl()) {
    RequestTail();
  }
  ~HttpReader() override {
    for (CURL* handle : idle_) curl_.easy_cleanup(handle);
  }
  HttpReader(const HttpReader&) = delete;
  HttpReader& operator=(const HttpReader&) = delete;

  uint64_t size() const override { return version_.bytes; }
  void Read(uint64_t offset, std::span<std::byte> to) override {
    const uint64_t tail_begin = size() - tail_.size();
    if (offset + to.size() > tail_begin) {
      const uint64_t from = std::max(offset, tail_begin);
      const uint64_t count = offset + to.size() - from;
      std::memcpy(to.data() + (from - offset), tail_.data() + (from - tail_begin), count);
      to = to.first(from - offset);
    }
    if (!to.empty()) ReadRange(offset, to);
  }

 private:
  static constexpr uint64_t kTailBytes = 64 << 10;
  // A request for bytes [offset, offset + to.size()), or for the last bytes of an object that has
  // not answered yet.
  struct Transfer {
    const HttpReader& reader;
    uint64_t offset = 0;
    std::span<std::byte> to;
    bool is_first = false;
    uint64_t got = 0;
    Answer answer = {};
    CURLcode code = CURLE_OK;
    bool accepted = false;                        // the headers match the request
    std::optional<Error> failure = std::nullopt;  // a failure that another try cannot help
  };

  void RequestTail() {
    tail_.resize(kTailBytes);
    for (int failures = 0;;) {
      Transfer transfer{*this, 0, tail_, true};
      const bool complete = Perform(transfer);
      if (complete || (transfer.accepted && transfer.answer.range)) {
        RecordVersion(transfer.answer, transfer.got);
        return;
      }
      if (++failures == patience_.tries) {
        throw MakeGiveUpError(Finding::kOpenFailed, failures, transfer.answer.status,
                              curl_.easy_strerror(transfer.code));
      }
      Wait(failures, transfer.answer.retry_after_s);
    }
  }

  // Records the object's size and version; `got` bytes of the tail were received.
  void RecordVersion(const Answer& answer, uint64_t got) {
    version_ = {answer.range ? answer.range->total : got, answer.etag, answer.last_modified};
    met_ = version_;
    tail_.resize(answer.range ? answer.range->bytes : got);
    ReadRange(version_.bytes - tail_.size() + got, std::span(tail_).subspan(got));
  }

  // Continues where a broken transfer ended.
  void ReadRange(uint64_t offset, std::span<std::byte> to) {
    for (int failures = 0; !to.empty();) {
      Transfer transfer{*this, offset, to};
      if (Perform(transfer)) return;
      offset += transfer.got;
      to = to.subspan(transfer.got);
      if (transfer.got > 0) {
        failures = 0;
        continue;
      }
      if (++failures == patience_.tries) {
        throw MakeGiveUpError(Finding::kReadFailed, failures, transfer.answer.status,
                              curl_.easy_strerror(transfer.code));
      }
      Wait(failures, transfer.answer.retry_after_s);
    }
  }

  // Makes one request. Returns true if the transfer is complete; otherwise a retry may help.
  bool Perform(Transfer& transfer) {
    CURL* handle = TakeHandle();
    const std::string range =
        transfer.is_first
            ? fmt::format("-{}", transfer.to.size())
            : fmt::format("{}-{}", transfer.offset, transfer.offset + transfer.to.size() - 1);
    curl_slist* headers = nullptr;
    if (met_ && met_->can_be_asked_for()) {
      headers = curl_.slist_append(nullptr, fmt::format("If-Match: {}", met_->etag).c_str());
    }
    curl_.easy_setopt(handle, CURLOPT_RANGE, range.c_str());
    curl_.easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
    curl_.easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
    curl_.easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
    transfer.code = curl_.easy_perform(handle);
    curl_.slist_free_all(headers);
    ++requests_made;
    bytes_got += transfer.got;
    // A connection that broke in the middle of an answer is not reused.
    const bool whole = transfer.code == CURLE_OK;
    if (whole) {
      GiveHandle(handle);
    } else {
      curl_.easy_cleanup(handle);
    }
    if (whole && !transfer.accepted) CheckAnswer(transfer);  // checks an answer that had no body
    if (transfer.failure) throw *transfer.failure;
    if (whole && transfer.accepted) return transfer.is_first || transfer.got == transfer.to.size();
    if (!whole && !IsTransient(transfer.code, met_.has_value()) &&
        !remote::IsTransient(transfer.answer.status)) {
      throw Error(Finding::kReadFailed, curl_.easy_strerror(transfer.code));
    }
    return false;
  }

  // Returns true if the answer shows that the object is no longer the recorded version.
  bool HasChanged(const Answer& answer) const {
    if (answer.status == 412) return true;
    return met_ && (answer.status == 416 || (answer.status < 300 && met_->Differs(answer)));
  }

  // Returns true if the body holds exactly the bytes that were asked for.
  bool HasWantedBytes(const Transfer& transfer) const {
    const Answer& answer = transfer.answer;
    if (answer.status == 206 && answer.range) {
      const ContentRange& range = *answer.range;
      return transfer.is_first
                 ? range.first + range.bytes == range.total &&
                       range.bytes == std::min<uint64_t>(range.total, kTailBytes)
                 : range.first == transfer.offset && range.bytes == transfer.to.size();
    }
    // A server without ranges sends the whole object, which may be what was requested.
    return answer.status == 200 && answer.content_length &&
           *answer.content_length <= transfer.to.size() &&
           (transfer.is_first || (transfer.offset == 0 && met_->bytes == transfer.to.size()));
  }

  // Sets `accepted`, or `failure` if a retry is useless.
  void CheckAnswer(Transfer& transfer) const {
    const Answer& answer = transfer.answer;
    if (remote::IsTransient(answer.status)) return;
    const bool is_empty = answer.status == 416 && answer.range == ContentRange{};
    if (transfer.is_first && is_empty) {
      transfer.accepted = true;
    } else if (HasChanged(answer)) {
      transfer.failure = Changed();
    } else if (HasWantedBytes(transfer)) {
      transfer.accepted = true;
    } else if (answer.status == 206 && answer.range) {
      transfer.failure =
          Error(Finding::kReadFailed, "the server sent another range than requested");
    } else if (answer.status == 200 || answer.status == 206) {
      transfer.failure = Error(Finding::kOpenFailed, "the server does not serve ranges")
                             .Hint("fetch the whole file: curl -O URL");
    } else {
      transfer.failure = Refused(answer.status);
    }
  }

  static size_t OnHeader(char* data, size_t size, size_t count, void* user) {
    static_cast<Transfer*>(user)->answer.TakeLine({data, size * count});
    return size * count;
  }

  // A return value other than the number of bytes ends the transfer.
  static size_t OnBody(char* data, size_t size, size_t count, void* user) {
    Transfer& transfer = *static_cast<Transfer*>(user);
    const size_t bytes = size * count;
    if (!transfer.accepted) transfer.reader.CheckAnswer(transfer);
    if (!transfer.accepted) return 0;
    if (bytes > transfer.to.size() - transfer.got) {
      transfer.failure = Error(Finding::kReadFailed, "the server sent more than was requested");
      return 0;
    }
    std::memcpy(transfer.to.data() + transfer.got, data, bytes);
    transfer.got += bytes;
    return bytes;
  }

  void Wait(int failures, uint64_t retry_after_s) const {
    std::minstd_rand random(std::random_device{}());
    const double by_chance = std::uniform_real_distribution(0.5, 1.5)(random);
    const double seconds = patience_.WaitAfter(failures, by_chance, retry_after_s);
    if (retry_after_s > 0) {
      NotifyWait(fmt::format("{}: the server asks to wait {} s; trying again in {:.0f} s",
                             NameOfUrl(url_), retry_after_s, seconds));
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  CURL* TakeHandle() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        CURL* handle = idle_.back();
        idle_.pop_back();
        return handle;
      }
    }
    CURL* handle = curl_.easy_init();
    if (handle == nullptr) throw Error(Finding::kNoResources, "no connection can be made");
    const auto set = [&](CURLoption option, auto value) {
      return curl_.easy_setopt(handle, option, value);
    };
    set(CURLOPT_URL, url_.c_str());
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_USERAGENT, "kvtool");
    // Only http and https are allowed, and no redirection from https to http.
    const bool is_https = url_[4] == 's' || url_[4] == 'S';
    if (set(CURLOPT_PROTOCOLS_STR, "http,https") != CURLE_OK) {
      set(kProtocols, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));  // NOLINT
    }
    if (set(CURLOPT_REDIR_PROTOCOLS_STR, is_https ? "https" : "http,https") != CURLE_OK) {
      set(kRedirectProtocols,
          static_cast<long>(CURLPROTO_HTTPS | (is_https ? 0 : CURLPROTO_HTTP)));  // NOLINT
    }
    set(CURLOPT_FOLLOWLOCATION, 1L);
    set(CURLOPT_MAXREDIRS, kMostRedirects);
    set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
    set(CURLOPT_HEADERFUNCTION, &HttpReader::OnHeader);
    set(CURLOPT_WRITEFUNCTION, &HttpReader::OnBody);
    return handle;
  }

  void GiveHandle(CURL* handle) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(handle);
  }

  const std::string url_;
  const Patience patience_;
  const Curl& curl_;
  std::optional<Version> met_;
  Version version_;
  Bytes tail_;
  std::mutex mutex_;
  std::vector<CURL*> idle_;  // each keeps its connection
};

}  // namespace

std::unique_ptr<RangeReader> OpenHttp(std::string url) {
  return std::make_unique<HttpReader>(std::move(url), Patience{});
}

bool CanOpenUrls() { return true; }

Traffic TrafficSoFar() { return {requests_made, bytes_got}; }

}  // namespace kv::remote
