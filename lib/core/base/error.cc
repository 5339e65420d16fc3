// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lib/core/base/utf8.h"

namespace kv {
namespace {

using enum Finding;
// `using enum` would be ambiguous: both enumerations have a kUsage and a kInternal.
constexpr ErrorCode kInvalidData = ErrorCode::kInvalidData;
constexpr ErrorCode kIo = ErrorCode::kIo;
constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;

constexpr FindingInfo kFindings[] = {
    {Finding::kUsage, ErrorCode::kUsage, "wrong use of the command line",
     "A flag, an argument or their combination cannot be used. 'kvtool help COMMAND' shows what is "
     "possible."},
    {kGeometryMissing, ErrorCode::kUsage, "the file does not say its head count or head size",
     "llama.cpp state files store rows, not heads. Give --model MODEL, or --kv-heads H or "
     "--head-dim D (one gives the other)."},
    {kUnknownFormat, kInvalidData, "no known format matches the bytes of the file",
     "Formats are detected by content, never by name. Headerless data needs --raw "
     "DTYPE:ORDER:SIZES; anything at all can be archived with --from opaque."},
    {kAmbiguousFormat, kInvalidData, "the bytes fit two formats or layouts",
     "The bytes can be parsed in more than one way. Choose one with --from or with the flag that "
     "the message names."},
    {kConfig, ErrorCode::kUsage, "a configuration file cannot be used",
     "A key is unknown, a value has the wrong type, or a path does not exist."},
    {kOutputTooSmall, ErrorCode::kUsage, "the caller's buffer is too small",
     "A library call was given less room than its result needs. kvt_encode_bound() says how much "
     "always suffices; kvt_encode() also says how much this call needed."},
    {kBusy, ErrorCode::kUsage, "the context or the queue is busy",
     "A context of the library serves one call at a time. Give each thread a context of its own; "
     "contexts may share a pool. A queue (kvt_queue) holds as many tickets as it was made for: "
     "take completions, then submit again. kvt_queue_wait returns this if the ticket is not done "
     "in time."},
    {kCancelled, ErrorCode::kUsage, "the call was cancelled",
     "kvt_ctx_cancel() was called while it ran. Its output holds garbage."},
    {kNoMemory, kIo, "the library could not allocate memory",
     "The call left everything as it was except its output, which holds garbage."},
    {kBadArgument, ErrorCode::kUsage, "an argument of a library call is wrong",
     "A pointer is null, buffers overlap, no version had this struct_size, or a value is not in "
     "its enumeration."},
    {kOpenFailed, kIo, "a file cannot be opened",
     "The file is missing, not permitted, or a folder where a file is expected (or the reverse)."},
    {kReadFailed, kIo, "reading failed", "The operating system reported an error while reading."},
    {kWriteFailed, kIo, "writing failed",
     "The disk is full or the operating system reported another error. No half-written file is "
     "left under the final name."},
    {kExists, kIo, "the output exists", "Nothing is overwritten unless -f/--force is given."},
    {kUnsafeName, kInvalidData, "a stored file name would leave the output folder",
     "Names in archives must be relative, without '..', and are never followed through links."},
    {kNoResources, kIo, "the system gave no memory or no thread",
     "A limit of the session (ulimit -v, -u), of its container or of the machine was reached. -T 1 "
     "needs no thread and the least memory."},
    {kTruncated, kInvalidData, "the file ends too early",
     "A field or an array reaches past the end of the file. The copy is incomplete or a size field "
     "is damaged."},
    {kTrailingBytes, kInvalidData, "bytes are left over",
     "A well-formed file of this format ends with its last field; the meaning of these bytes is "
     "unknown."},
    {kBadMagic, kInvalidData, "the magic number is wrong",
     "The file is not of the format asked for."},
    {kBadVersion, kInvalidData, "the version field is impossible",
     "No version of this format ever had this number."},
    {kBadHeader, kInvalidData, "the header is malformed",
     "The header does not follow the grammar of the format (formats/NAME/FORMAT.md)."},
    {kBadField, kInvalidData, "a field has an impossible value",
     "The value is outside what the format allows."},
    {kOverflow, kInvalidData, "a size computation overflows 64 bits",
     "Counts in the file multiply to more bytes than can exist."},
    {kSizeMismatch, kInvalidData, "two sizes that must agree differ",
     "For example a shape and the bytes that hold it, or a declared and an inflated size."},
    {kBadOffsets, kInvalidData, "stored ranges leave holes, overlap or leave the file",
     "Ranges must tile the data exactly."},
    {kUnknownDtype, kInvalidData, "the element type is unknown",
     "No table of element types has this name or number."},
    {kDuplicateName, kInvalidData, "a name occurs twice",
     "Two readers could see different data in such a file, so it is refused."},
    {kBadName, kInvalidData, "a name cannot be used",
     "The name is empty, unsafe or not valid text."},
    {kMissingRecord, kInvalidData, "something that the file refers to is missing",
     "An index, a sidecar or a pickle names a record that the file or folder lacks."},
    {kLimit, kInvalidData, "a limit was reached",
     "A declared size exceeds the limit in force (--max-bytes, --memory, nesting depth)."},
    {kBadText, kInvalidData, "text or JSON inside the file is malformed",
     "The text is not valid UTF-8 or JSON, or a value has the wrong type."},
    {kInconsistent, kInvalidData, "parts of the input contradict each other",
     "For example layers of different token counts, or updates of one layer that overlap."},
    {kBadFrame, kInvalidData, "a compressed frame is malformed",
     "The frame's header does not describe its payload."},
    {kBadPayload, kInvalidData, "a compressed payload does not decode",
     "The payload is damaged or was made by something else."},
    {kChecksum, kInvalidData, "a checksum does not match",
     "Stored bytes changed after they were written."},
    {kLostChunk, kInvalidData, "a chunk of the archive is lost",
     "The bytes of this range cannot be restored; --keep-going fills them with zeros and says "
     "where."},
    {kContentDiffers, kInvalidData, "restored content differs from its source",
     "The decoded bytes are not those that were compressed."},
    {kContextDiffers, kInvalidData, "the frame belongs to another context",
     "The 16 bytes that name the model, layer and tokens are not those that the caller expects: "
     "the frame is sound, but it is another one. Treat it as a miss."},
    {kReferenceMissing, kIo, "a reference of the archive was not found",
     "The archive stores rows as differences from another cache, which 'kvtool inspect' names. "
     "kvtool searches for it in the archive's folder and among the files given by --base."},
    {kReferenceDiffers, kInvalidData, "a reference is not the one that the archive was made with",
     "The rows that the archive needs of it are gone or have changed. A copy of the original in "
     "any format that keeps its values will do, as will an archive of it."},
    {kProfileMissing, kIo, "the profile or transform that the data was coded with was not found",
     "Pages coded with a profile hold no tables of their own. The message names the profile by its "
     "hash; a newly trained profile is a different one."},
    {kForbiddenGlobal, kInvalidData, "a pickle names something that can run code",
     "Pickles can run code. kvtool never runs it; names outside the data classes are refused."},
    {kForbiddenOpcode, kInvalidData, "a pickle uses an opcode that can run code",
     "Only data opcodes are interpreted."},
    {kBadPickle, kInvalidData, "a pickle is malformed", "The opcodes do not build a value."},
    {kBadZip, kInvalidData, "a zip directory is malformed",
     "Entries must lie inside the file, not overlap, and agree with their central directory."},
    {kUnsupportedVersion, kUnsupported, "this version is known but not supported",
     "The message names the version and the nearest supported ones."},
    {kUnsupportedKind, kUnsupported, "this kind of content is known but not supported",
     "The archive commands can still store it as opaque bytes."},
    {kUnsupportedDtype, kUnsupported, "this element type is known but not supported here",
     "The operation or output format is not defined for the element type in the message."},
    {kUnsupportedLayout, kUnsupported, "this layout is known but not supported here",
     "The operation needs an order of elements that cannot be made from this one."},
    {kTraceMismatch, kInvalidData, "trace and snapshot do not belong together",
     "Layers, heads, sizes or positions differ; the message names them."},
    {Finding::kInternal, ErrorCode::kInternal, "a bug in kvtool",
     "Please report it with the output of 'kvtool targets'."},
};

}  // namespace

std::span<const FindingInfo> AllFindings() { return kFindings; }

const FindingInfo& FindInfo(Finding finding) {
  for (const FindingInfo& info : kFindings) {
    if (info.finding == finding) return info;
  }
  AssertionFailed("every Finding is in the table", __FILE__, __LINE__);
}

std::string FindingId(Finding finding) {
  return fmt::format("KV{:04}", static_cast<unsigned>(finding));
}

Error::Error(Finding finding, std::string message)
    : finding_(finding), message_(std::move(message)) {
  Compose();
}

Error& Error::At(uint64_t offset) {
  offset_ = offset;
  Compose();
  return *this;
}

Error& Error::Hint(std::string hint) {
  hint_ = std::move(hint);
  return *this;
}

Error& Error::In(std::string_view context) {
  context_ = context_.empty() ? std::string(context) : fmt::format("{}: {}", context, context_);
  Compose();
  return *this;
}

Error& Error::File(std::string_view name) {
  if (file_.empty()) file_ = name;
  Compose();
  return *this;
}

ErrorCode Error::code() const { return FindInfo(finding_).code; }

void Error::Compose() {
  line_.clear();
  if (!file_.empty()) line_ += file_ + ": ";
  if (!context_.empty()) line_ += context_ + ": ";
  line_ += message_;
  if (offset_) line_ += fmt::format(" (offset {:#x})", *offset_);
  if (finding_ != Finding::kUsage) line_ += fmt::format(" [{}]", FindingId(finding_));
  line_ = Printable(line_);  // contains names and texts from files
}

Error SystemError(Finding finding, std::string_view action, std::string_view name) {
  Error error(finding, "{}: {}", action, std::strerror(errno));
  if (!name.empty()) error.File(name);
  if (finding == Finding::kWriteFailed && errno == ENOSPC)
    error.Hint("free some room, or write to another disk, one file at a time");
  return error;
}

}  // namespace kv
