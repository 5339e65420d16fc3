// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/file.h"
#include "lib/remote/answer.h"
#include "lib/remote/curl.h"
#include "lib/remote/open_http.h"
#include "lib/remote/url.h"

namespace kv::remote {

// One object behind a URL. Its version is the one met first; an answer of another one is an error.
// Asks with GET alone, as presigned URLs allow nothing else, and for one range at a time.
class HttpReader : public RangeReader {
 public:
  // Asks for the last bytes, which tell the size, and keeps them: that is where an archive has its
  // index. `url` may be secret and occurs in no message.
  HttpReader(std::string url, Patience patience);
  ~HttpReader() override;
  HttpReader(const HttpReader&) = delete;
  HttpReader& operator=(const HttpReader&) = delete;

  uint64_t size() const override { return version_.bytes; }
  void Read(uint64_t offset, std::span<std::byte> to) override;

 private:
  static constexpr uint64_t kTailBytes = 64 << 10;
  struct Transfer;

  void MeetObject();
  void Meet(const Answer& answer, uint64_t got);
  // Goes on where a broken transfer ended.
  void ReadRange(uint64_t offset, std::span<std::byte> to);
  // Makes one request. Returns whether the transfer is complete; otherwise trying again may help.
  bool Perform(Transfer& transfer);
  void CheckAnswer(Transfer& transfer) const;
  void Wait(int failures, uint64_t retry_after_s) const;

  CURL* TakeHandle();
  void GiveHandle(CURL* handle);

  static size_t OnHeader(char* data, size_t size, size_t count, void* user);
  static size_t OnBody(char* data, size_t size, size_t count, void* user);

  const std::string url_;
  const Patience patience_;
  const Curl& curl_;
  std::optional<Version> met_;
  Version version_;
  Bytes tail_;
  std::mutex mutex_;
  std::vector<CURL*> idle_;  // each keeps its connection
};

}  // namespace kv::remote
