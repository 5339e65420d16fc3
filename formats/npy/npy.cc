// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads and writes npy and npz: headers as Python literals without evaluating them, and kvtool's
// own metadata.
#include "formats/npy/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/format.h"
#include "formats/tensors/kvtool_arrays.h"
#include "formats/tensors/tensor_snapshot.h"
#include "formats/zip/zip.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/spool_file.h"

namespace kv {

namespace {

constexpr std::string_view kEnding = ".npy";
constexpr std::string_view kMetadataMember = "__metadata__.npy";
constexpr std::string_view kMetadataFile = "metadata.json";
constexpr uint64_t kMetadataCap = 16 << 20;

bool IsNpy(ByteSpan bytes) { return AsText(bytes).starts_with(kNpyMagic); }

std::string WithoutEnding(std::string_view name) {
  if (name.ends_with(kEnding)) name.remove_suffix(kEnding.size());
  return std::string(name);
}

template <typename T>
void SwapAll(std::byte* values, uint64_t bytes, T (*swap)(T)) {
  for (uint64_t at = 0; at < bytes; at += sizeof(T))
    StoreLE(values + at, swap(LoadLE<T>(values + at)));
}

// Copies the values in little-endian order to a spool file, in bounded memory.
std::shared_ptr<const FileSource> SwappedCopy(ByteSpan values, uint32_t width) {
  constexpr uint64_t kStep = 1 << 20;
  SpoolFile spool;
  for (uint64_t at = 0; at < values.size(); at += kStep) {
    const ByteSpan from = values.subspan(at, std::min<uint64_t>(kStep, values.size() - at));
    Bytes piece(from.begin(), from.end());
    if (width == 2) {
      SwapAll<uint16_t>(piece.data(), piece.size(),
                        [](uint16_t v) { return __builtin_bswap16(v); });
    } else if (width == 4) {
      SwapAll<uint32_t>(piece.data(), piece.size(),
                        [](uint32_t v) { return __builtin_bswap32(v); });
    } else {
      SwapAll<uint64_t>(piece.data(), piece.size(),
                        [](uint64_t v) { return __builtin_bswap64(v); });
    }
    spool.Write(piece);
  }
  return spool.Release("swapped values");
}

std::vector<uint64_t> FortranStrides(const std::vector<uint64_t>& shape, uint64_t width) {
  std::vector<uint64_t> strides;
  for (const uint64_t extent : shape) {
    strides.push_back(width);
    width = CheckedMul(width, extent, "shape");
  }
  return strides;
}

// Collects arrays into one TensorFile.
class ArrayReader {
 public:
  ArrayReader(TensorFile& file, const OpenOptions& options, uint64_t copied_bytes)
      : file_(file), options_(options), copied_bytes_(copied_bytes) {
    if (options.as_dtype.empty()) return;
    as_dtype_ = ParseDType(options.as_dtype);
    if (!as_dtype_ || IsBlockQuantised(*as_dtype_)) {
      throw Error(Finding::kUsage, "--input-dtype '{}': no such type", options.as_dtype);
    }
  }

  // Adds an array; `npy` is a whole npy file. With `among_others`, arrays that are not numbers are
  // skipped.
  void Add(std::string name, ByteSpan npy, bool among_others) {
    const NpyHeader header = ParseNpyHeader(npy);
    NpyType type;
    try {
      type = ParseNpyType(header.descr);
    } catch (const Error& error) {
      if (!among_others || error.finding() != Finding::kUnsupportedDtype) throw;
      file_.notes.push_back(
          fmt::format("array '{}' is left out: {}", Escaped(name), error.message()));
      return;
    }
    if (type.raw) type.dtype = ResolveDType(type.dtype, header.descr);
    AddValues(std::move(name), header, type, npy.subspan(header.data_offset));
  }

 private:
  DType ResolveDType(DType bits, std::string_view descr) const {
    if (as_dtype_ && Info(*as_dtype_).block_bytes == Info(bits).block_bytes) return *as_dtype_;
    // Metadata states the types: see formats/tensors.
    if (IsKvtoolFile(file_.metadata)) return bits;
    throw Error(Finding::kUnsupportedDtype, "type '{}' does not say what its bits mean",
                Escaped(descr, 40))
        .Hint(
            "ml_dtypes arrays are saved like this; give --input-dtype bf16 (or f8_e4m3, f8_e5m2)");
  }

  void AddValues(std::string name, const NpyHeader& header, const NpyType& type, ByteSpan data) {
    TensorView view{type.dtype, header.shape, {}, data.data()};
    const uint32_t width = Info(type.dtype).block_bytes;
    const uint64_t bytes = view.bytes();
    if (bytes > data.size()) {
      throw Error(Finding::kSizeMismatch, "shape ({}) of {} needs {} bytes, but there are {}",
                  fmt::join(header.shape, ", "), Name(type.dtype), bytes, data.size())
          .At(header.data_offset);
    }
    if (bytes < data.size()) {
      file_.notes.push_back(
          fmt::format("{} bytes follow the values{}", data.size() - bytes,
                      name.empty() ? "" : fmt::format(" of '{}'", Escaped(name))));
    }
    if (type.swapped && bytes != 0) {
      copied_bytes_ = CheckedAdd(copied_bytes_, bytes, "copied bytes");
      if (copied_bytes_ > options_.max_bytes) {
        throw Error(Finding::kLimit, "big-endian values need a copy of {} bytes, the limit is {}",
                    copied_bytes_, options_.max_bytes)
            .Hint("raise --max-bytes if the file is trusted");
      }
      file_.spools.push_back(SwappedCopy(data.first(bytes), width));
      view.data = file_.spools.back()->bytes().data();
    }
    view.strides = header.fortran_order ? FortranStrides(header.shape, width)
                                        : ContiguousView(type.dtype, header.shape, nullptr).strides;
    file_.tensors.push_back({std::move(name), std::move(view), {}});
  }

  TensorFile& file_;
  const OpenOptions& options_;
  std::optional<DType> as_dtype_;
  uint64_t copied_bytes_;  // inflated and swapped bytes, limited by --max-bytes
};

// Reads kvtool's own metadata: a byte array with JSON text.
void ReadMetadataMember(ByteSpan npy, TensorFile& file) {
  try {
    const NpyHeader header = ParseNpyHeader(npy);
    const ByteSpan text = npy.subspan(header.data_offset);
    if (header.descr != "|u1" || text.size() > kMetadataCap) return;
    if (auto metadata = ParseMetadata(AsText(text))) file.metadata = std::move(*metadata);
  } catch (const Error&) {
    // The fault is reported when the member is read as an ordinary array.
  }
}

}  // namespace

TensorFile ReadNpy(Source source, const OpenOptions& options) {
  TensorFile file;
  file.source = std::move(source);
  file.format = "npy";
  if (!file.source.is_folder) {
    ArrayReader(file, options, 0).Add("", file.source.files.at(0).data->bytes(), false);
    return file;
  }
  const SourceFile* metadata = file.source.Find(kMetadataFile);
  if (metadata != nullptr && metadata->data->size() <= kMetadataCap) {
    if (auto parsed = ParseMetadata(AsText(metadata->data->bytes())))
      file.metadata = std::move(*parsed);
  }
  ArrayReader reader(file, options, 0);
  for (const SourceFile& member : file.source.files) {
    if (!IsNpy(member.data->bytes())) {
      if (&member != metadata) file.notes.push_back(Escaped(member.name) + " is left out: not npy");
      continue;
    }
    try {
      reader.Add(WithoutEnding(member.name), member.data->bytes(), true);
    } catch (Error& error) {
      throw error.In(Escaped(member.name));
    }
  }
  return file;
}

TensorFile ReadNpz(Source source, const OpenOptions& options) {
  if (source.files.size() != 1) {
    throw Error(Finding::kUnsupportedKind, "an npz file is one file, not a folder");
  }
  TensorFile file;
  file.source = std::move(source);
  file.format = "npz";
  const auto archive = std::make_shared<ZipArchive>(file.source.files.at(0).data);
  archive->Inflate(options.max_bytes);
  if (archive->spool() != nullptr) file.spools.push_back(archive->spool());
  if (const ZipEntry* metadata = archive->Find(kMetadataMember)) {
    ReadMetadataMember(archive->Data(*metadata), file);
  }
  ArrayReader reader(file, options, archive->spool() == nullptr ? 0 : archive->spool()->size());
  file.checks.emplace_back([archive] { archive->CheckStored(); });
  file.tensors.reserve(archive->entries().size());
  for (const ZipEntry& entry : archive->entries()) {
    const ByteSpan content = archive->Data(entry);
    if (entry.name == kMetadataMember && !file.metadata.empty()) continue;
    if (!IsNpy(content)) {
      if (!entry.name.empty() && entry.name.back() != '/') {
        file.notes.push_back(fmt::format("member '{}' is left out: not npy", Escaped(entry.name)));
      }
      continue;
    }
    try {
      reader.Add(WithoutEnding(entry.name), content, true);
    } catch (Error& error) {
      if (error.offset() && !entry.deflated) error.At(*error.offset() + entry.data_offset);
      throw error.In("member '{}'", Escaped(entry.name));
    }
  }
  return file;
}

Confidence ProbeNpy(const Source& source) { return ProbeFiles(source, IsNpy); }

Confidence ProbeNpz(const Source& source) {
  if (source.is_folder || AsText(source.files.at(0).data->bytes()).substr(0, 4) != "PK\3\4") {
    return Confidence::kNo;
  }
  try {
    // Torch files are zip files too; they have a pickle and no arrays.
    const bool torch = HoldsMember(source.files.at(0).data->bytes(), "data.pkl");
    return torch ? Confidence::kNo : Confidence::kCertain;
  } catch (const Error&) {
    return Confidence::kMaybe;  // a reader reports what is wrong
  }
}

Snapshot OpenNpy(Source source, const OpenOptions& options) {
  return BuildSnapshot(ReadNpy(std::move(source), options), options);
}

Snapshot OpenNpz(Source source, const OpenOptions& options) {
  return BuildSnapshot(ReadNpz(std::move(source), options), options);
}

namespace {

void WriteArray(const TensorToWrite& tensor, Sink& sink) {
  sink.Write(MakeNpyHeader(tensor.dtype, tensor.shape));
  tensor.write(sink);
}

TensorToWrite MetadataArray(const TensorMetadata& metadata) {
  const std::string text = MetadataJson(metadata);
  return {
      "__metadata__", DType::kU8, {text.size()}, [text](Sink& sink) { sink.Write(AsBytes(text)); }};
}

}  // namespace

void WriteNpy(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  snapshot.CheckContent();
  const TensorExport content = MakeExport(snapshot);
  AtomicFolder folder(path, rules);
  const auto write = [&](const std::string& name, const std::function<void(Sink&)>& body) {
    const auto file = folder.Create(name);
    body(*file);
    file->Close();
  };
  for (const TensorToWrite& tensor : content.tensors)
    write(tensor.name + ".npy", [&](Sink& sink) { WriteArray(tensor, sink); });
  write("metadata.json",
        [&](Sink& sink) { sink.Write(AsBytes(MetadataJson(content.metadata) + "\n")); });
  folder.Commit();
}

void WriteNpz(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  snapshot.CheckContent();
  TensorExport content = MakeExport(snapshot);
  content.tensors.push_back(MetadataArray(content.metadata));
  AtomicFile file(path, rules);
  ZipWriter zip(file);
  for (const TensorToWrite& tensor : content.tensors) {
    const uint64_t header_bytes = MakeNpyHeader(tensor.dtype, tensor.shape).size();
    zip.Begin(tensor.name + ".npy", CheckedAdd(header_bytes, tensor.bytes(), "member size"));
    WriteArray(tensor, zip);
    zip.End();
  }
  zip.Finish();
  file.Commit();
}

namespace {

constexpr size_t kMostDimensions = 64;  // numpy 2; numpy 1 has 32
constexpr uint64_t kPreambleBytes = 8;  // magic and version
constexpr uint64_t kAlignment = 64;

struct NpyWord {
  std::string_view name;
  DType dtype;
};
constexpr NpyWord kWords[] = {
    {"f2", DType::kF16}, {"f4", DType::kF32}, {"f8", DType::kF64}, {"i1", DType::kI8},
    {"i2", DType::kI16}, {"i4", DType::kI32}, {"i8", DType::kI64}, {"u1", DType::kU8},
    {"u2", DType::kU16}, {"u4", DType::kU32}, {"u8", DType::kU64}, {"b1", DType::kBool},
};

// Parses the literal of a header: a dict of the three keys, with a string, a bool and a tuple of
// integers as values. One pass, no recursion.
class LiteralParser {
 public:
  LiteralParser(std::string_view text, uint64_t base) : text_(text), base_(base) {}

  NpyHeader Parse() {
    NpyHeader header;
    bool has_descr = false, has_order = false, has_shape = false;
    Expect('{');
    while (!Accept('}')) {
      const std::string key = String();
      Expect(':');
      if (key == "descr" && !std::exchange(has_descr, true)) {
        header.descr = Descr();
      } else if (key == "fortran_order" && !std::exchange(has_order, true)) {
        header.fortran_order = Bool();
      } else if (key == "shape" && !std::exchange(has_shape, true)) {
        header.shape = Shape();
      } else {
        throw Bad(fmt::format("key '{}' is unknown or occurs twice", Escaped(key, 40)));
      }
      if (!Accept(',')) {
        Expect('}');
        break;
      }
    }
    SkipSpace();
    if (at_ != text_.size()) throw Bad("more text follows the dict");
    if (!has_descr || !has_order || !has_shape) {
      throw Bad("needs the keys descr, fortran_order and shape");
    }
    return header;
  }

 private:
  Error Bad(std::string what) const {
    Error error(Finding::kBadHeader, "header: " + what);
    return error.At(base_ + at_);
  }

  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  bool Accept(char c) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void Expect(char c) {
    if (!Accept(c)) throw Bad(fmt::format("expected '{}'", c));
  }

  bool AcceptWord(std::string_view word) {
    SkipSpace();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool Bool() {
    if (AcceptWord("True")) return true;
    if (AcceptWord("False")) return false;
    throw Bad("expected True or False");
  }

  std::string String() {
    SkipSpace();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') throw Bad("expected a quoted string");
    const size_t end = text_.find(quote, at_ + 1);
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    if (end == text_.npos || inside.find('\\') != inside.npos) throw Bad("unterminated string");
    at_ = end + 1;
    return std::string(inside);
  }

  std::string Descr() {
    if (Accept('[')) {
      throw Error(Finding::kUnsupportedDtype, "is a structured array; save its fields separately")
          .At(base_ + at_);
    }
    return String();
  }

  uint64_t Number() {
    SkipSpace();
    const size_t begin = at_;
    uint64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = CheckedAdd(CheckedMul(value, 10, "shape"), static_cast<uint64_t>(text_[at_] - '0'),
                         "shape");
    }
    if (at_ == begin) throw Bad("expected a non-negative integer");
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2
    return value;
  }

  std::vector<uint64_t> Shape() {
    std::vector<uint64_t> shape;
    Expect('(');
    while (!Accept(')')) {
      shape.push_back(Number());
      if (shape.size() > kMostDimensions) throw Bad("more than 64 dimensions");
      if (Accept(',')) continue;
      if (shape.size() == 1) throw Bad("a tuple of one needs a comma");
      Expect(')');
      break;
    }
    return shape;
  }

  std::string_view text_;
  uint64_t base_;
  size_t at_ = 0;
};

}  // namespace

NpyHeader ParseNpyHeader(ByteSpan file) {
  ByteReader reader(file);
  if (file.size() < kNpyMagic.size() || reader.Text(kNpyMagic.size(), "magic") != kNpyMagic) {
    throw Error(Finding::kBadMagic, "does not begin with \\x93NUMPY").At(0);
  }
  const uint8_t major = reader.U8("version"), minor = reader.U8("version");
  if (major < 1 || major > 3 || minor != 0) {
    throw Error(Finding::kBadVersion, "npy version {}.{}; 1.0, 2.0 and 3.0 exist", major, minor)
        .At(kNpyMagic.size());
  }
  const uint64_t length = major == 1 ? reader.U16("header length") : reader.U32("header length");
  if (length > kNpyHeaderCap) {
    throw Error(Finding::kLimit, "header of {} bytes; the limit is {}", length, kNpyHeaderCap)
        .At(kPreambleBytes);
  }
  const uint64_t begin = reader.offset();
  const std::string_view text = reader.Text(length, "header");
  if (text.empty() || text.back() != '\n') {
    throw Error(Finding::kBadHeader, "header does not end with a line feed").At(begin);
  }
  NpyHeader header = LiteralParser(text, begin).Parse();
  header.data_offset = reader.offset();
  return header;
}

NpyType ParseNpyType(std::string_view descr) {
  const auto unknown = [&] {
    return Error(Finding::kUnknownDtype, "unknown type '{}'", Escaped(descr, 40));
  };
  if (descr.size() < 2) throw unknown();
  const char order = descr[0], kind = descr[1];
  const std::string_view width = descr.substr(2);
  if (order != '<' && order != '>' && order != '=' && order != '|') throw unknown();
  if (kind == 'O') {
    throw Error(Finding::kUnsupportedKind,
                "is an object array: pickled Python objects, which are never loaded");
  }
  if (kind == 'V' && (width == "1" || width == "2")) {
    return {.dtype = width == "1" ? DType::kU8 : DType::kU16, .raw = true};
  }
  if (std::string_view("SUVMmc").find(kind) != std::string_view::npos || descr.substr(1) == "f16" ||
      descr.substr(1) == "f12") {
    throw Error(Finding::kUnsupportedDtype, "type '{}' is not a real number of 1 to 8 bytes",
                Escaped(descr, 40));
  }
  for (const NpyWord& word : kWords) {
    if (descr.substr(1) != word.name) continue;
    const bool wide = Info(word.dtype).block_bytes > 1;
    if (wide && order == '|') throw unknown();  // only types of one byte have no byte order
    return {.dtype = word.dtype, .swapped = wide && order == '>'};
  }
  throw unknown();
}

namespace {

// numpy writes |V2 for ml_dtypes.bfloat16, and |V1 for its types of 8 bits.
std::string FormatDescr(DType dtype) {
  const uint32_t width = Info(dtype).block_bytes;
  const char order = width == 1 ? '|' : '<';
  for (const NpyWord& word : kWords) {
    if (word.dtype == dtype) return fmt::format("{}{}", order, word.name);
  }
  KV_ASSERT(!IsBlockQuantised(dtype));  // blocks were converted to bytes before
  return fmt::format("|V{}", width);
}

}  // namespace

Bytes MakeNpyHeader(DType dtype, const std::vector<uint64_t>& shape) {
  std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (", FormatDescr(dtype));
  text += fmt::format("{}", fmt::join(shape, ", "));
  text += shape.size() == 1 ? ",), }" : "), }";
  const uint64_t lead = kPreambleBytes + 2;
  const uint64_t total = RoundUp(lead + text.size() + 1, kAlignment);
  text.append(total - lead - text.size() - 1, ' ');
  text += '\n';
  ByteWriter out;
  out.Append(kNpyMagic);
  out.U8(1);
  out.U8(0);
  out.Write(static_cast<uint16_t>(text.size()));
  out.Append(text);
  return out.Release();
}

}  // namespace kv
