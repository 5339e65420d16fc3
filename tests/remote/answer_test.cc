// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/core/base/error.h"
#include "lib/remote/url.h"

namespace kv::remote::answer_test {

TEST_CASE("What a Content-Range says, or that it says nothing") {
  CHECK(ParseContentRange("bytes 0-15/1000") == ContentRange{0, 16, 1000});
  CHECK(ParseContentRange(" bytes 984-999/1000\r\n") == ContentRange{984, 16, 1000});
  CHECK(ParseContentRange("bytes */1000") == ContentRange{0, 0, 1000});
  CHECK(ParseContentRange("bytes 0-18446744073709551614/18446744073709551615")->bytes ==
        18446744073709551615u);
  for (const char* text :
       {"", "bytes", "bytes 0-15", "bytes 0-15/*", "bytes 15-0/1000", "bytes 0-1000/1000",
        "bytes 0-15/1000x", "bytes -15/1000", "items 0-15/1000", "bytes 0-15/99999999999999999999",
        "bytes 0-18446744073709551615/18446744073709551615", "bytes */", "bytes 0 -15/1000"}) {
    INFO(text);
    CHECK_FALSE(ParseContentRange(text).has_value());
  }
}

TEST_CASE("The last answer of several counts") {
  Answer answer;
  for (const char* line :
       {"HTTP/1.1 307 Temporary Redirect\r\n", "ETag: \"old\"\r\n", "Content-Length: 7\r\n", "\r\n",
        "HTTP/2 206\r\n", "content-range: bytes 0-15/1000\r\n", "eTag:  \"new\" \r\n",
        "Retry-After: 3\r\n", "no colon here\r\n", "\r\n"}) {
    answer.TakeLine(line);
  }
  CHECK(answer.status == 206);
  CHECK(answer.etag == "\"new\"");
  CHECK(answer.range == ContentRange{0, 16, 1000});
  CHECK_FALSE(answer.content_length.has_value());
  CHECK(answer.retry_after_s == 3);
  answer.TakeLine("Retry-After: Wed, 21 Oct 2026 07:28:00 GMT\r\n");
  CHECK(answer.retry_after_s == 0);
  answer.TakeLine("Retry-After: 999999999999\r\n");
  CHECK(answer.retry_after_s == 999999999999);
  answer.TakeLine("Retry-After: 99999999999999999999999999\r\n");
  CHECK(answer.retry_after_s == UINT64_MAX);
  for (const char* line : {"HTTP/1.1", "HTTP/1.1 ", "HTTP/1.1 99999 Odd", "HTTP/1.1 x"}) {
    answer.TakeLine(line);
    CHECK(answer.status == 0);
  }
}

TEST_CASE("A server's wish to wait counts up to a minute") {
  const Patience patience;
  CHECK(patience.WaitAfter(1, 1, 0) == 0.2);
  CHECK(patience.WaitAfter(30, 1.5, 0) == 20);
  CHECK(patience.WaitAfter(1, 1, 45) == 45);
  CHECK(patience.WaitAfter(6, 1, 1) == 6.4);
  CHECK(patience.WaitAfter(1, 1, 999999999999) == 60);
  CHECK(patience.WaitAfter(1, 1, UINT64_MAX) == 60);
}

TEST_CASE("Versions are told apart by tag, else by time, and always by size") {
  const auto answer = [](uint64_t total, std::string etag, std::string time) {
    Answer made;
    made.range = ContentRange{0, 1, total};
    made.etag = std::move(etag);
    made.last_modified = std::move(time);
    return made;
  };
  const Version tagged{10, "\"a\"", "then"};
  CHECK(tagged.can_be_asked_for());
  CHECK_FALSE(tagged.Differs(answer(10, "\"a\"", "now")));
  CHECK(tagged.Differs(answer(10, "\"b\"", "then")));
  CHECK(tagged.Differs(answer(10, "", "then")));
  CHECK(tagged.Differs(answer(11, "\"a\"", "then")));
  const Version weak{10, "W/\"a\"", ""};
  CHECK_FALSE(weak.can_be_asked_for());
  CHECK(weak.Differs(answer(10, "W/\"b\"", "")));
  const Version timed{10, "", "then"};
  CHECK_FALSE(timed.can_be_asked_for());
  CHECK_FALSE(timed.Differs(answer(10, "", "then")));
  CHECK(timed.Differs(answer(10, "", "now")));
}

TEST_CASE("The name of a URL holds no secret and opens it") {
  CHECK(NameOfUrl("https://u:p@host/a.kvz?X-Amz-Signature=1#f") == "https://host/a.kvz");
  CHECK(NameOfUrl("https://u:p@host/a.kvz?X-Amz-Signature=1#f") == "https://host/a.kvz");
  CHECK(NameOfUrl("https://host/a.kvz?X-Amz-Signature=2") == "https://host/a.kvz (2)");
  CHECK(NameOfUrl("http://host?secret@host") == "http://host");
  CHECK(NameOfUrl("http://host/path@1") == "http://host/path@1");
  CHECK(IsUrl("HTTP://HOST/"));
  CHECK_FALSE(IsUrl("http://"));
  CHECK_FALSE(IsUrl("s3://bucket/a"));
  CHECK(OpenUrl("slot0.bin") == nullptr);
}

TEST_CASE("A text that is shown keeps no secret of the URLs in it") {
  CHECK(WithoutUrlSecrets("--trace=https://u:p@host/t?sig=1") == "--trace=https://host/t");
  CHECK(WithoutUrlSecrets("a,HTTP://host/a?x,https://u@host/b?s=1,2") ==
        "a,HTTP://host/a,https://host/b");
  CHECK(WithoutUrlSecrets("-t'https://host/a?x' b") == "-t'https://host/a' b");
  CHECK(WithoutUrlSecrets("https://") == "https://");
  CHECK(WithoutUrlSecrets("").empty());
}

TEST_CASE("A URL that the command line does not name is not opened") {
  try {
    OpenUrl("http://user:secret@192.0.2.1/a.kvz?key=secret");
    FAIL("it was opened");
  } catch (const Error& error) {
    CHECK(error.finding() == Finding::kOpenFailed);
    CHECK(std::string(error.what()).starts_with("http://192.0.2.1/a.kvz: is a URL that"));
  }
}

}  // namespace kv::remote::answer_test
