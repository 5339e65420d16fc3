// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/safetensors/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "lib/core/base/name_table.h"
#include "lib/core/base/number.h"

namespace kv::safetensors {
namespace {

constexpr size_t kDepthCap = 64;
constexpr std::string_view kMetadataName = "__metadata__";

// Receives the JSON piece by piece and builds the header, so that nothing is ever nested in memory.
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
      throw Error(Finding::kDuplicateName, fmt::format("'{}' occurs twice", Escaped(name)))
          .In(Context());
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
  // Fields that every tensor has need no set: a header may hold a million tensors.
  static constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};
  struct Frame {
    Where where;
    unsigned fields = 0;
    std::optional<std::unordered_set<std::string>> keys = std::nullopt;

    // False if the name was there.
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
    return names_.Insert(name, static_cast<uint32_t>(header_.tensors.size()),  // the next one
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

  // A value of a kind that the format gives no meaning here. Fine only in fields it does not know.
  bool Scalar(std::string_view found) {
    const bool known_field =
        where() == Where::kTensor && (key_ == "dtype" || key_ == "shape" || key_ == "data_offsets");
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
  NameTable names_;  // of the tensors
  bool has_metadata_ = false;
};

}  // namespace

Header ParseHeader(ByteSpan file) {
  ByteReader reader(file);
  const uint64_t length = reader.U64("header length");
  if (length > kHeaderCap) {
    throw Error(
        Finding::kLimit,
        fmt::format("a safetensors header of {} bytes; the format allows {}", length, kHeaderCap))
        .At(0)
        .Hint(
            "no reader of safetensors takes it: save the tensors in several files, or archive "
            "this one with --from opaque");
  }
  const std::string_view text = reader.Text(length, "header");
  if (text.empty() || text.front() != '{') {
    throw Error(Finding::kBadHeader, "header does not begin with '{'").At(kLengthBytes);
  }
  // The JSON library takes a NUL for the end of the text, whatever follows.
  const auto control = std::find_if(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t';
  });
  if (control != text.end()) {
    throw Error(Finding::kBadText, "header holds a control character")
        .At(kLengthBytes + static_cast<uint64_t>(control - text.begin()));
  }
  Header header;
  header.data_offset = reader.offset();
  constexpr size_t kShortestTensor = 50;  // with its name, type, shape and offsets
  const auto braces = static_cast<size_t>(std::count(text.begin(), text.end(), '{'));
  header.tensors.reserve(std::min(braces, text.size() / kShortestTensor));
  HeaderBuilder builder(header);
  const CLocale locale;  // as ReadJson
  nlohmann::json::sax_parse(text, &builder);
  return header;
}

}  // namespace kv::safetensors
