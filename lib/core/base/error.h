// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by error.cc, assertion.cc

#include <fmt/core.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kv {

// The party that caused a failure. The program turns it into an exit status
// (apps/kvtool/exit_status.h).
enum class ErrorCode { kUsage, kInvalidData, kIo, kUnsupported, kInternal };

// The kind of fault, across all formats. The numbers are printed as KVnnnn, documented by `kvtool
// explain`, and never reused. error.cc has the table with texts.
enum class Finding : uint16_t {
  // errors on the command line or in its environment
  kUsage = 1,
  kGeometryMissing = 2,
  kUnknownFormat = 3,
  kAmbiguousFormat = 4,
  kConfig = 5,
  // errors of the library's caller
  kOutputTooSmall = 6,
  kBusy = 7,
  kCancelled = 8,
  kNoMemory = 9,
  kBadArgument = 10,
  // errors of the file system
  kOpenFailed = 101,
  kReadFailed = 102,
  kWriteFailed = 103,
  kExists = 104,
  kUnsafeName = 105,
  kNoResources = 106,
  // any file
  kTruncated = 1001,
  kTrailingBytes = 1002,
  kBadMagic = 1003,
  kBadVersion = 1004,
  kBadHeader = 1005,
  kBadField = 1006,
  kOverflow = 1007,
  kSizeMismatch = 1008,
  kBadOffsets = 1009,
  kUnknownDtype = 1010,
  kDuplicateName = 1011,
  kBadName = 1012,
  kMissingRecord = 1013,
  kLimit = 1014,
  kBadText = 1015,
  kInconsistent = 1016,
  // errors in compressed data and archives
  kBadFrame = 1101,
  kBadPayload = 1102,
  kChecksum = 1103,
  kLostChunk = 1104,
  kContentDiffers = 1105,
  kContextDiffers = 1106,
  kReferenceMissing = 1107,
  kReferenceDiffers = 1108,
  kProfileMissing = 1109,
  // errors in pickles and zip files
  kForbiddenGlobal = 1201,
  kForbiddenOpcode = 1202,
  kBadPickle = 1203,
  kBadZip = 1204,
  // content that is recognised, but not supported
  kUnsupportedVersion = 1301,
  kUnsupportedKind = 1302,
  kUnsupportedDtype = 1303,
  kUnsupportedLayout = 1304,
  // traces that do not fit the snapshot or the request
  kTraceMismatch = 1401,
  // bugs
  kInternal = 9001,
};

struct FindingInfo {
  Finding finding;
  ErrorCode code;
  std::string_view summary;
  std::string_view explanation;
};

std::span<const FindingInfo> AllFindings();
const FindingInfo& FindInfo(Finding finding);
// Returns "KV1001".
std::string FindingId(Finding finding);

// The only exception type of the project. `what()` is the whole line that a user reads, without the
// program's name: "FILE: CONTEXT: MESSAGE (offset 0x10) [KV1001]". Messages are written without the
// file's name, which the layer that knows it adds while unwinding.
class Error : public std::exception {
 public:
  Error(Finding finding, std::string message);
  // Formats the message as fmt::format.
  template <typename... Values>
  requires(sizeof...(Values) > 0)
      Error(Finding finding, fmt::format_string<Values...> text, Values&&... values)
      : Error(finding, fmt::vformat(text, fmt::make_format_args(values...))) {}

  Error& At(uint64_t offset);           // adds the byte offset in the file
  Error& Hint(std::string hint);        // adds a hint, which is printed on a separate line
  Error& In(std::string_view context);  // adds "layer 3 K" in front of earlier contexts
  Error& File(std::string_view name);   // adds the file's name, unless the error has one
  template <typename... Values>
  requires(sizeof...(Values) > 0) Error& In(fmt::format_string<Values...> text,
                                            Values&&... values) {
    return In(fmt::vformat(text, fmt::make_format_args(values...)));
  }
  template <typename... Values>
  requires(sizeof...(Values) > 0) Error& Hint(fmt::format_string<Values...> text,
                                              Values&&... values) {
    return Hint(fmt::vformat(text, fmt::make_format_args(values...)));
  }

  Finding finding() const { return finding_; }
  ErrorCode code() const;
  std::optional<uint64_t> offset() const { return offset_; }
  const std::string& hint() const { return hint_; }
  const std::string& message() const { return message_; }
  const std::string& file() const { return file_; }
  const char* what() const noexcept override { return line_.c_str(); }

 private:
  void Compose();

  Finding finding_;
  std::string message_, context_, file_, hint_, line_;
  std::optional<uint64_t> offset_;
};

// Returns "ACTION: TEXT OF ERRNO", with the file's name, if any.
Error SystemError(Finding finding, std::string_view action, std::string_view name = {});

// A broken invariant is a bug: prints its location and aborts, in every build. libkvtool throws
// kInternal instead.
[[noreturn]] void AssertionFailed(const char* expression, const char* file, int line);
#define KV_ASSERT(expression) \
  ((expression) ? void(0) : ::kv::AssertionFailed(#expression, __FILE__, __LINE__))

}  // namespace kv
