// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads headers of safetensors with a streaming parser that builds no JSON tree, and writes files
// in the official order.
#include "formats/safetensors/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "formats/format.h"
#include "formats/tensors/tensor_snapshot.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/dtype.h"
#include "lib/core/base/name_table.h"
#include "lib/core/base/number.h"

namespace kv::safetensors {
namespace {

enum class Standing {
  kOfficial,
  kAlias,   // a non-standard name that other programs write
  kOpaque,  // an official type that is kept as bytes
};

// A row of kTypes, which has the order of the official enumeration: by ascending alignment.
struct TypeWord {
  std::string_view name;
  DType dtype;
  uint32_t bits;
  Standing standing = Standing::kOfficial;
};
constexpr TypeWord kTypeWords[] = {
    {"BOOL", DType::kBool, 8},
    {"F4", DType::kU8, 4, Standing::kOpaque},
    {"F6_E2M3", DType::kU8, 6, Standing::kOpaque},
    {"F6_E3M2", DType::kU8, 6, Standing::kOpaque},
    {"U8", DType::kU8, 8},
    {"I8", DType::kI8, 8},
    {"F8_E5M2", DType::kF8E5M2, 8},
    {"F8_E4M3", DType::kF8E4M3, 8},
    {"F8E5M2", DType::kF8E5M2, 8, Standing::kAlias},
    {"F8E4M3FN", DType::kF8E4M3, 8, Standing::kAlias},
    {"F8_E8M0", DType::kU8, 8, Standing::kOpaque},
    {"F8_E4M3FNUZ", DType::kU8, 8, Standing::kOpaque},
    {"F8_E5M2FNUZ", DType::kU8, 8, Standing::kOpaque},
    {"I16", DType::kI16, 16},
    {"U16", DType::kU16, 16},
    {"F16", DType::kF16, 16},
    {"BF16", DType::kBF16, 16},
    {"I32", DType::kI32, 32},
    {"U32", DType::kU32, 32},
    {"F32", DType::kF32, 32},
    {"C64", DType::kU8, 64, Standing::kOpaque},
    {"F64", DType::kF64, 64},
    {"I64", DType::kI64, 64},
    {"U64", DType::kU64, 64},
};

constexpr uint64_t kHeaderCap = 100'000'000;
constexpr uint64_t kLengthBytes = 8;

struct HeaderTensor {
  std::string name, dtype;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;                 // in the data
  std::optional<uint64_t> memory_format = {};  // LMCache's extra field "fmt"
};

struct Header {
  std::vector<HeaderTensor> tensors;  // as written
  TensorMetadata metadata;
  uint64_t data_offset = 0;  // offset in the file
};

constexpr size_t kDepthCap = 64;
constexpr std::string_view kMetadataName = "__metadata__";

// Receives the JSON piece by piece and builds the header, so that no nested document is ever in
// memory.
class HeaderBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderBuilder(Header& header) : header_(header) {}

  bool null() override { return Scalar("null"); }
  bool boolean(bool) override { return Scalar("a truth value"); }
  bool number_integer(number_integer_t) override { return Scalar("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Scalar("a fraction or a number above 2^64");
  }
  bool binary(binary_t&) override { return Scalar("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    switch (where()) {
      case Where::kShape:
        tensor().shape.push_back(value);
        return true;
      case Where::kOffsets:
        if (offsets_ == 2) throw Bad("data_offsets has more than two numbers");
        (offsets_++ == 0 ? tensor().begin : tensor().end) = value;
        return true;
      case Where::kTensor:
        if (key_ == "fmt") tensor().memory_format = value;
        return Scalar("a number");
      default:
        return Scalar("a number");
    }
  }

  bool string(string_t& value) override {
    if (where() == Where::kTensor && key_ == "dtype") {
      tensor().dtype = std::move(value);
      return true;
    }
    if (where() == Where::kMetadata) {
      header_.metadata[key_] = std::move(value);
      return true;
    }
    return Scalar("a string");
  }

  bool key(string_t& name) override {
    const bool is_new = where() == Where::kRoot ? InsertRoot(name) : stack_.back().Insert(name);
    if (!is_new) {
      throw Error(Finding::kDuplicateName, "'{}' occurs twice", Escaped(name)).In(Context());
    }
    key_ = std::move(name);
    return true;
  }

  bool start_object(size_t) override {
    Where inside = Where::kIgnored;
    if (stack_.empty()) {
      inside = Where::kRoot;
    } else if (where() == Where::kRoot && key_ == kMetadataName) {
      inside = Where::kMetadata;
    } else if (where() == Where::kRoot) {
      inside = Where::kTensor;
      header_.tensors.push_back({.name = key_, .dtype = {}, .shape = {}, .memory_format = {}});
    } else {
      Scalar("an object");
    }
    return Push(inside);
  }

  bool end_object() override {
    const Frame& frame = stack_.back();
    if (frame.where == Where::kTensor) {
      for (size_t i = 0; i < std::size(kFields); ++i) {
        if ((frame.fields & 1u << i) == 0) throw Bad(fmt::format("has no {}", kFields[i]));
      }
    }
    stack_.pop_back();
    return true;
  }

  bool start_array(size_t) override {
    Where inside = Where::kIgnored;
    if (!stack_.empty() && where() == Where::kTensor && key_ == "shape") {
      inside = Where::kShape;
    } else if (!stack_.empty() && where() == Where::kTensor && key_ == "data_offsets") {
      inside = Where::kOffsets;
      offsets_ = 0;
    } else {
      Scalar("an array");
    }
    return Push(inside);
  }

  bool end_array() override {
    if (where() == Where::kOffsets && offsets_ != 2) throw Bad("data_offsets needs two numbers");
    stack_.pop_back();
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    throw Error(Finding::kBadText, "header is not valid JSON").At(kLengthBytes + position);
  }

 private:
  enum class Where { kRoot, kMetadata, kTensor, kShape, kOffsets, kIgnored };
  // Fields that every tensor has are not collected in a set: a header may hold a million tensors.
  static constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};
  struct Frame {
    Where where;
    unsigned fields = 0;
    std::optional<std::unordered_set<std::string>> keys = std::nullopt;

    // Returns false if the name exists already.
    bool Insert(const std::string& name) {
      if (where == Where::kTensor) {
        for (size_t i = 0; i < std::size(kFields); ++i) {
          if (name != kFields[i]) continue;
          const bool is_new = (fields & 1u << i) == 0;
          fields |= 1u << i;
          return is_new;
        }
      }
      if (!keys) keys.emplace();
      return keys->insert(name).second;
    }
  };

  bool InsertRoot(const std::string& name) {
    if (name == kMetadataName) return std::exchange(has_metadata_, true) == false;
    // The value is the index of the next tensor.
    return names_.Insert(name, static_cast<uint32_t>(header_.tensors.size()),
                         [&](uint32_t i) -> const std::string& { return header_.tensors[i].name; });
  }

  Where where() const { return stack_.empty() ? Where::kIgnored : stack_.back().where; }
  HeaderTensor& tensor() { return header_.tensors.back(); }

  std::string Context() const {
    for (auto frame = stack_.rbegin(); frame != stack_.rend(); ++frame) {
      if (frame->where == Where::kTensor) {
        return fmt::format("tensor '{}'", Escaped(header_.tensors.back().name));
      }
      if (frame->where == Where::kMetadata) return std::string(kMetadataName);
    }
    return "header";
  }

  Error Bad(std::string what) const {
    Error error(Finding::kBadText, std::move(what));
    return error.In(Context());
  }

  // Handles a value of a kind that has no meaning here. It is allowed only in unknown fields.
  bool Scalar(std::string_view found) {
    const bool known_field = where() == Where::kTensor && Contains(kFields, key_);
    if (stack_.empty() ||
        (where() != Where::kIgnored && (where() != Where::kTensor || known_field))) {
      throw Bad(fmt::format("{} cannot be {}",
                            where() == Where::kShape || where() == Where::kOffsets
                                ? std::string("an extent or offset")
                            : stack_.empty() ? std::string("the header")
                                             : fmt::format("'{}'", Escaped(key_)),
                            found));
    }
    return true;
  }

  bool Push(Where where) {
    if (stack_.size() == kDepthCap) {
      throw Bad(fmt::format("is nested deeper than {} levels", kDepthCap));
    }
    stack_.push_back({.where = where});
    return true;
  }

  Header& header_;
  std::vector<Frame> stack_;
  std::string key_;
  int offsets_ = 0;
  NameTable names_;  // names of the tensors
  bool has_metadata_ = false;
};

// Checks the length field and the JSON; the reader checks the offsets. Throws kTruncated, kLimit,
// kBadHeader, kBadText, kDuplicateName.
Header ParseHeader(ByteSpan file) {
  ByteReader reader(file);
  const uint64_t length = reader.U64("header length");
  if (length > kHeaderCap) {
    throw Error(Finding::kLimit, "a safetensors header of {} bytes; the format allows {}", length,
                kHeaderCap)
        .At(0)
        .Hint(
            "no reader of safetensors accepts it: save the tensors in several files, or archive "
            "this one with --from opaque");
  }
  const std::string_view text = reader.Text(length, "header");
  if (text.empty() || text.front() != '{') {
    throw Error(Finding::kBadHeader, "header does not begin with '{'").At(kLengthBytes);
  }
  // The JSON library treats a NUL as the end of the text, so it is rejected here.
  const auto control = std::find_if(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t';
  });
  if (control != text.end()) {
    throw Error(Finding::kBadText, "header holds a control character")
        .At(kLengthBytes + static_cast<uint64_t>(control - text.begin()));
  }
  Header header;
  header.data_offset = reader.offset();
  constexpr size_t kShortestTensor = 50;  // least bytes of a tensor's entry
  const auto braces = static_cast<size_t>(std::count(text.begin(), text.end(), '{'));
  header.tensors.reserve(std::min(braces, text.size() / kShortestTensor));
  HeaderBuilder builder(header);
  const CLocale locale;  // as in ReadJson
  nlohmann::json::sax_parse(text, &builder);
  return header;
}

}  // namespace

}  // namespace kv::safetensors

namespace kv {
namespace {

using safetensors::HeaderTensor;
using safetensors::Standing;
using safetensors::TypeWord;

constexpr std::string_view kFileEnding = ".safetensors";

// Returns true if a name follows. Numbers in other files may begin alike and match their length;
// the first name rules them out.
bool BeginsWithName(std::string_view header) {
  const size_t first = header.find_first_not_of(" \t\r\n", 1);
  return first != header.npos && header[first] == '"';
}

// Returns true also for a header above the limit, so that the reader can report it.
bool LooksRight(ByteSpan bytes) {
  if (bytes.size() <= safetensors::kLengthBytes) return false;
  const uint64_t length = LoadLE<uint64_t>(bytes.data());
  const std::string_view text = AsText(bytes.subspan(safetensors::kLengthBytes));
  if (length > text.size() || text.front() != '{') return false;
  return length <= safetensors::kHeaderCap || BeginsWithName(text.substr(0, 4096));
}

std::string Stem(std::string_view name) {
  if (name.size() > kFileEnding.size() && name.ends_with(kFileEnding))
    name.remove_suffix(kFileEnding.size());
  return std::string(name);
}

const TypeWord& FindTypeWord(std::string_view name) {
  for (const TypeWord& word : safetensors::kTypeWords) {
    if (word.name == name) return word;
  }
  throw Error(Finding::kUnknownDtype, "unknown dtype '{}'", Escaped(name, 40));
}

uint64_t CountTensorBytes(const HeaderTensor& tensor, const TypeWord& word) {
  uint64_t bits = word.bits;
  for (const uint64_t extent : tensor.shape) bits = CheckedMul(bits, extent, "size in bits");
  if (bits % 8 != 0) {
    throw Error(Finding::kSizeMismatch, "{} bits are not whole bytes", bits);
  }
  return bits / 8;
}

// Returns the shape as stored; opaque types become rows of bytes.
std::vector<uint64_t> ShapeAsStored(std::vector<uint64_t> shape, const TypeWord& word,
                                    uint64_t bytes) {
  if (word.standing != Standing::kOpaque || word.bits == 8) return shape;
  if (word.bits < 8) return {bytes};
  shape.push_back(word.bits / 8);
  return shape;
}

// Returns true for the copies of headers that LMCache's GDS backend keeps beside its files.
bool IsHeaderCopy(const Source& source, std::string_view name) {
  constexpr std::string_view kCopy = ".metadata";
  return source.is_folder && name.ends_with(kCopy) &&
         source.Find(name.substr(0, name.size() - kCopy.size())) != nullptr;
}

void AddTensors(ByteSpan bytes, const std::string& stem, TensorFile& file) {
  safetensors::Header header = safetensors::ParseHeader(bytes);
  const ByteSpan data = bytes.subspan(header.data_offset);
  const auto before = [](const HeaderTensor& a, const HeaderTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  };
  if (!std::is_sorted(header.tensors.begin(), header.tensors.end(), before))
    std::stable_sort(header.tensors.begin(), header.tensors.end(), before);
  file.tensors.reserve(file.tensors.size() + header.tensors.size());
  uint64_t position = 0;
  for (HeaderTensor& tensor : header.tensors) {
    try {
      if (tensor.begin != position || tensor.end < tensor.begin) {
        throw Error(Finding::kBadOffsets, "data_offsets [{}, {}], but the data so far ends at {}",
                    tensor.begin, tensor.end, position);
      }
      const TypeWord& word = FindTypeWord(tensor.dtype);
      const uint64_t size = CountTensorBytes(tensor, word);
      if (tensor.end - tensor.begin != size) {
        throw Error(Finding::kSizeMismatch, "shape [{}] of {} needs {} bytes, data_offsets give {}",
                    fmt::join(tensor.shape, ", "), tensor.dtype, size, tensor.end - tensor.begin);
      }
      if (tensor.end > data.size()) {
        throw Error(Finding::kTruncated, "ends at {}, the data has {} bytes", tensor.end,
                    data.size())
            .At(header.data_offset + tensor.begin);
      }
      position = tensor.end;
      if (word.standing != Standing::kOfficial) {
        file.notes.push_back(word.standing == Standing::kAlias
                                 ? fmt::format("'{}': dtype {} is taken as {}",
                                               Escaped(tensor.name), word.name, Name(word.dtype))
                                 : fmt::format("'{}': values of type {} are kept as bytes",
                                               Escaped(tensor.name), word.name));
      }
      if (tensor.memory_format) {
        file.metadata.emplace(kMemoryFormatPrefix + tensor.name,
                              std::to_string(*tensor.memory_format));
      }
      TensorView view =
          ContiguousView(word.dtype, ShapeAsStored(std::move(tensor.shape), word, size),
                         data.data() + tensor.begin);
      file.tensors.push_back({std::move(tensor.name), std::move(view), stem});
    } catch (Error& error) {
      throw error.In("tensor '{}'", Escaped(tensor.name));
    }
  }
  if (position != data.size()) {
    throw Error(Finding::kTrailingBytes, "{} bytes follow the last tensor", data.size() - position)
        .At(header.data_offset + position);
  }
  for (auto& [key, value] : header.metadata) {
    const auto [at, is_new] = file.metadata.emplace(key, value);
    if (!is_new && at->second != value) {
      file.notes.push_back(
          fmt::format("{} contradicts an earlier file about '{}'", Escaped(stem), Escaped(key)));
    }
  }
}

}  // namespace

TensorFile ReadSafetensors(Source source, const OpenOptions&) {
  TensorFile file;
  file.source = std::move(source);
  file.format = "safetensors";
  for (const SourceFile& member : file.source.files) {
    if (IsHeaderCopy(file.source, member.name)) continue;
    if (file.source.is_folder && !LooksRight(member.data->bytes())) {
      file.notes.push_back(Escaped(member.name) + " is left out: not a safetensors file");
      continue;
    }
    try {
      AddTensors(member.data->bytes(), Stem(member.name), file);
    } catch (Error& error) {
      if (file.source.is_folder) error.In(Escaped(member.name));
      throw;
    }
  }
  return file;
}

Confidence ProbeSafetensors(const Source& source) {
  return ProbeFiles(source, [](ByteSpan bytes) { return LooksRight(bytes); });
}

Snapshot OpenSafetensors(Source source, const OpenOptions& options) {
  return BuildSnapshot(ReadSafetensors(std::move(source), options), options);
}

namespace {

using safetensors::Standing;
using safetensors::TypeWord;

constexpr uint64_t kHeaderAlignment = 8;

// Returns the index in the official enumeration, whose reverse is the order of tensors in a file.
size_t WordIndex(DType dtype) {
  const auto* at =
      std::find_if(std::begin(safetensors::kTypeWords), std::end(safetensors::kTypeWords),
                   [&](const TypeWord& word) {
                     return word.dtype == dtype && word.standing == Standing::kOfficial;
                   });
  KV_ASSERT(at != std::end(safetensors::kTypeWords));
  return static_cast<size_t>(at - std::begin(safetensors::kTypeWords));
}

}  // namespace

Bytes SafetensorsHead(const std::vector<const TensorToWrite*>& order,
                      const TensorMetadata& metadata) {
  const auto dump = [](const nlohmann::json& value) {
    return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  // The header is written as text directly: an ordered JSON object would search all names for each
  // new one.
  std::string text = "{";
  const auto add = [&](const std::string& name, std::string_view value) {
    if (text.size() > 1) text += ',';
    text.append(dump(name)).append(":").append(value);
  };
  if (!metadata.empty()) add("__metadata__", dump(metadata));
  uint64_t position = 0;
  for (const TensorToWrite* tensor : order) {
    const uint64_t end = CheckedAdd(position, tensor->bytes(), "size of the file");
    add(tensor->name, fmt::format(R"({{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  safetensors::kTypeWords[WordIndex(tensor->dtype)].name,
                                  fmt::join(tensor->shape, ","), position, end));
    position = end;
  }
  text += '}';
  text.resize(RoundUp(text.size(), kHeaderAlignment), ' ');
  if (text.size() > safetensors::kHeaderCap) {
    throw Error(Finding::kLimit, "header of {} bytes; the format allows {}", text.size(),
                safetensors::kHeaderCap);
  }
  ByteWriter head;
  head.U64(text.size());
  head.Append(text);
  return head.Release();
}

void WriteSafetensorsFile(const std::vector<TensorToWrite>& tensors, const TensorMetadata& metadata,
                          Sink& sink) {
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorToWrite* a, const TensorToWrite* b) {
    const size_t word_a = WordIndex(a->dtype), word_b = WordIndex(b->dtype);
    return word_a != word_b ? word_a > word_b : a->name < b->name;
  });
  sink.Write(SafetensorsHead(order, metadata));
  for (const TensorToWrite* tensor : order) tensor->write(sink);
}

void WriteSafetensors(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  snapshot.CheckContent();
  const TensorExport content = MakeExport(snapshot);
  AtomicFile file(path, rules);
  WriteSafetensorsFile(content.tensors, content.metadata, file);
  file.Commit();
}

}  // namespace kv
