// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <thread>

#include "lib/core/base/error.h"
#include "lib/core/base/file.h"

namespace kv::ranges_threads_test {
namespace {

std::byte At(uint64_t offset) { return static_cast<std::byte>(offset * 2654435761u >> 13); }

struct Served {
  uint64_t size;
  std::atomic<uint64_t> calls = 0, bytes = 0, failing_calls = 0;
};

class Reader : public RangeReader {
 public:
  explicit Reader(Served& served) : served_(served) {}
  uint64_t size() const override { return served_.size; }
  void Read(uint64_t offset, std::span<std::byte> to) override {
    ++served_.calls;
    uint64_t left = served_.failing_calls;
    while (left > 0 && !served_.failing_calls.compare_exchange_weak(left, left - 1)) {
    }
    if (left > 0) throw Error(Finding::kReadFailed, "the line is down");
    // Catch's assertions work on one thread only, and any thread may run this.
    if (offset + to.size() > served_.size) throw std::out_of_range("beyond the file");
    served_.bytes += to.size();
    for (uint64_t i = 0; i < to.size(); ++i) to[i] = At(offset + i);
  }

 private:
  Served& served_;
};

bool Holds(ByteSpan bytes, uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    if (bytes[i] != At(i)) return false;
  }
  return true;
}

TEST_CASE("A range comes once, in whole blocks, and nothing else comes") {
  Served served{10 * FetchedFile::kBlock + 5};
  const auto file = FileSource::FromRanges(std::make_unique<Reader>(served), "remote");
  CHECK(file->size() == served.size);
  CHECK(served.calls == 0);
  file->Need(FetchedFile::kBlock + 1, 1);
  CHECK(served.bytes == FetchedFile::kBlock);
  CHECK(Holds(file->bytes(), FetchedFile::kBlock, 2 * FetchedFile::kBlock));
  CHECK(file->bytes()[0] == std::byte{0});
  file->Need(0, 3 * FetchedFile::kBlock);  // the request surrounds blocks that are already there
  CHECK(served.bytes == 3 * FetchedFile::kBlock);
  file->Need(served.size - 1, 100);
  file->Need(served.size, 100);
  file->Need(0, 0);
  CHECK(served.bytes == 3 * FetchedFile::kBlock + 5);
  const auto slice = FileSource::Slice(file, 5 * FetchedFile::kBlock, 10, "slice");
  slice->Need(0, 100);
  CHECK(served.bytes == 4 * FetchedFile::kBlock + 5);
  file->NeedAll();
  CHECK(served.bytes == served.size);
  CHECK(Holds(file->bytes(), 0, served.size));
}

TEST_CASE("What failed is tried again, and only the caller hears of it") {
  Served served{3 * FetchedFile::kMostAtOnce};
  served.failing_calls = 1;
  FetchedFile file(std::make_unique<Reader>(served));
  CHECK_THROWS_AS(file.Need(0, served.size), Error);
  file.Need(0, served.size);
  CHECK(Holds(file.bytes(), 0, served.size));
}

TEST_CASE("Many threads need overlapping ranges, some of which fail at first") {
  Served served{6 * FetchedFile::kMostAtOnce / 4 + 77};
  served.failing_calls = 3;
  FetchedFile file(std::make_unique<Reader>(served));
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (uint64_t t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < 40; ++i) {
          const uint64_t begin = (i * 7 + t * 13) * 39'989 % served.size;
          const uint64_t size = std::min<uint64_t>(served.size - begin, 100'003);
          for (bool done = false; !done;) {
            try {
              file.Need(begin, size);
              done = true;
            } catch (const Error&) {
            }
          }
          if (!Holds(file.bytes(), begin, begin + size)) ++wrong;
        }
      });
    }
  }
  CHECK(wrong == 0);
  CHECK(served.bytes <= served.size);  // no byte was fetched twice
}

TEST_CASE("A file of no bytes, one beyond the limit, and one that no file can be") {
  Served none{0}, large{1000}, endless{~uint64_t{0}};
  CHECK(FileSource::FromRanges(std::make_unique<Reader>(none), "none")->bytes().empty());
  const auto file = FileSource::FromRanges(std::make_unique<Reader>(large), "large");
  CHECK_THROWS_WITH(file->NeedAll(999), Catch::Contains("limit"));
  CHECK_THROWS_AS(FileSource::FromRanges(std::make_unique<Reader>(endless), "endless"), Error);
}

}  // namespace
}  // namespace kv::ranges_threads_test
