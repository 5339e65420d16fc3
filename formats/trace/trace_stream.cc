// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/trace/trace.h"
#include "lib/core/base/error.h"
#include "lib/core/base/json.h"

namespace kv {
namespace {

using nlohmann::json;

constexpr size_t kLineCap = 16 << 20;

// Lines of a mapped file, blank ones passed over.
class Lines {
 public:
  explicit Lines(std::shared_ptr<const FileSource> source) : source_(std::move(source)) {}

  std::optional<std::string_view> Next() {
    const std::string_view all = AsText(source_->bytes());
    while (at_ < all.size()) {
      ++number_;
      offset_ = at_;
      const size_t end = std::min(all.find('\n', at_), all.size());
      const std::string_view line = all.substr(at_, end - at_);
      at_ = end + 1;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      if (line.size() > kLineCap) {
        throw Failure(Finding::kLimit, fmt::format("a line of {} bytes, at most {} are read",
                                                   line.size(), kLineCap));
      }
      return line;
    }
    return std::nullopt;
  }

  json Parse(std::string_view line) const {
    try {
      json value = ReadJson(line, {.bytes = kLineCap});
      if (value.is_object()) return value;
    } catch (const Error& error) {
      throw Failure(error.finding(), error.message());
    }
    throw Failure(Finding::kBadText, "not a JSON object");
  }

  uint64_t number() const { return number_; }
  Error Failure(Finding finding, std::string message) const {
    return std::move(Error(finding, std::move(message))
                         .In(fmt::format("line {}", number_))
                         .At(offset_)
                         .File(source_->name()));
  }

 private:
  std::shared_ptr<const FileSource> source_;
  size_t at_ = 0, offset_ = 0;
  uint64_t number_ = 0;
};

uint64_t CountOf(const Lines& lines, const json& object, const char* key, uint64_t least,
                 uint64_t most, std::optional<uint64_t> fallback = std::nullopt) {
  const auto found = object.find(key);
  if (found == object.end() && fallback) return *fallback;
  if (found != object.end() && found->is_number_unsigned()) {
    const auto value = found->get<uint64_t>();
    if (value >= least && value <= most) return value;
  }
  throw lines.Failure(
      Finding::kBadField,
      fmt::format("'{}' is {}, expected a count from {} to {}", key,
                  found == object.end() ? "missing" : ShowJson(*found), least, most));
}

BlockScoreStream ReadHeader(const Lines& lines, const json& header, uint64_t& prompt) {
  const auto version = header.find("kvtool.trace");
  if (version == header.end() || !version->is_string() || *version != "1") {
    throw lines.Failure(Finding::kBadVersion,
                        "\"kvtool.trace\": \"1\" expected on the first line of a stream");
  }
  const auto params = header.find("params");
  if (params == header.end() || !params->is_object()) {
    throw lines.Failure(Finding::kBadField, "'params' is missing");
  }
  BlockScoreStream stream;
  stream.layers = static_cast<uint32_t>(CountOf(lines, *params, "layers", 1, kMostTraceLayers));
  stream.query_heads =
      static_cast<uint32_t>(CountOf(lines, *params, "num_head", 1, kMostTraceHeads));
  stream.kv_heads = static_cast<uint32_t>(
      CountOf(lines, *params, "kv_num_head", 1, kMostTraceHeads, stream.query_heads));
  stream.head_dim = static_cast<uint32_t>(CountOf(lines, *params, "head_dim", 1, kMostTraceHeads));
  stream.element_bytes = static_cast<uint32_t>(CountOf(lines, *params, "bytes_per_elem", 1, 8, 2));
  prompt = CountOf(lines, *params, "prompt_tokens", 0, kMostTracePositions);
  for (const auto& [name, value] : params->items()) {
    if (name.rfind("h2o_", 0) == 0 && value.is_number()) {
      stream.parameters.emplace_back(name, value.get<double>());
    }
  }
  return stream;
}

class Reader : public BlockScoreReader {
 public:
  explicit Reader(std::shared_ptr<const FileSource> source) : lines_(std::move(source)) {
    lines_.Next();  // the header
  }

  std::optional<BlockScoreCall> Next() override {
    const auto line = lines_.Next();
    if (!line) return std::nullopt;
    const json value = lines_.Parse(*line);
    BlockScoreCall call;
    call.line = lines_.number();
    call.step = CountOf(lines_, value, "step", 1, kMostTracePositions);
    call.layer = static_cast<uint32_t>(CountOf(lines_, value, "layer", 0, kMostTraceLayers - 1));
    const auto sums = value.find("block_acc");
    if (sums == value.end() || !sums->is_array()) {
      throw lines_.Failure(Finding::kBadField, "'block_acc' is missing");
    }
    for (const json& sum : *sums) {
      if (!sum.is_number()) {
        throw lines_.Failure(Finding::kBadField, "'block_acc' holds a value that is not a number");
      }
      call.block_sums.push_back(static_cast<float>(sum.get<double>()));
    }
    return call;
  }

 private:
  Lines lines_;
};

}  // namespace

AttentionTrace OpenBlockScores(std::shared_ptr<const FileSource> source) {
  Lines lines(source);
  const auto first = lines.Next();
  if (!first) {
    throw std::move(Error(Finding::kTruncated, "an empty stream").File(source->name()));
  }
  AttentionTrace trace;
  uint64_t prompt = 0;
  BlockScoreStream stream = ReadHeader(lines, lines.Parse(*first), prompt);
  stream.open = [source] { return std::make_unique<Reader>(source); };
  trace.path = source->name();
  trace.format = "jsonl";
  trace.level = TraceLevel::kBlockScores;
  trace.query_heads = stream.query_heads;
  trace.kv_heads = stream.kv_heads;
  trace.head_dim = stream.head_dim;
  trace.prompt_tokens = prompt;
  trace.block_scores = std::move(stream);
  trace.storage = source;
  return trace;
}

}  // namespace kv
