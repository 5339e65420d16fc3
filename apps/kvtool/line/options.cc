// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/line/numbers.h"
#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/base/checked.h"
#include "lib/core/base/number.h"
#include "lib/core/base/parallel.h"
#include "version.h"

namespace kv {
namespace {

const std::vector<std::string> kWhenWords = {"auto", "always", "never"};

When ParseWhen(const std::string& word) {
  return word == "always"  ? When::kAlways
         : word == "never" ? When::kNever
         : word == "json"  ? When::kJson
                           : When::kAuto;
}

Error BadValue(std::string_view flag, std::string_view text, std::string_view expected) {
  return Error(Finding::kUsage, fmt::format("{} '{}': expected {}", flag, text, expected));
}

uint64_t ParseWhole(std::string_view text, std::string_view flag, std::string_view whole) {
  const auto value = ParseNumber<uint64_t>(text);
  if (!value) throw BadValue(flag, whole, "whole numbers");
  return *value;
}

}  // namespace

void GlobalOptions::Declare(CommandLine& line) {
  const char* group = "Everywhere";
  line.Add("-T,--threads", threads, "Threads, 0 = all usable CPUs")
      .Environment("KVTOOL_THREADS")
      .Between(0, 1024)
      .Group(group);
  line.Add("--simd", simd, "Use one SIMD target (see kvtool targets)")
      .Environment("KVTOOL_SIMD")
      .Group(group);
  line.Add("--progress", progress,
           "Progress line: auto, always, never, or json: lines for programs, on standard error")
      .OneOf({"auto", "always", "never", "json"})
      .Group(group);
  line.OnFlag(
          "--no-progress", [this] { progress = "never"; }, "No progress line")
      .Group(group);
  line.Add("--color", colour, "Colour: auto, always, never").OneOf(kWhenWords).Group(group);
  line.OnFlag(
          "--no-color", [this] { colour = "never"; }, "No colour")
      .Group(group);
  line.AddFlag("--deterministic", deterministic, "Omit times and the machine from reports")
      .Group(group);
  line.AddFlag("-v,--verbose", verbose,
               "Also what was read and written, to the byte; -vv: also where settings came from")
      .Group(group);
  line.AddFlag("-q,--quiet", quiet,
               "Errors and what --json or -c asked for; -qq: the exit status alone")
      .Group(group);
}

When GlobalOptions::progress_when() const { return ParseWhen(progress); }

int GlobalOptions::thread_count() const { return threads > 0 ? threads : UsableCpus(); }

std::vector<std::string> ReadableFormats() {
  std::vector<std::string> names;
  for (const FormatEntry& format : Formats()) {
    if (format.open != nullptr) names.emplace_back(format.id);
  }
  return names;
}

std::vector<std::string> WritableFormats() {
  std::vector<std::string> names;
  for (const FormatEntry& format : Formats()) {
    if (format.write != nullptr) names.emplace_back(format.id);
  }
  return names;
}

void SnapshotOptions::Declare(CommandLine& line) {
  const char* group = "Reading the snapshot";
  line.Add("--from", open.from, "Format of the input (default: detected by its bytes)")
      .Suggest(ReadableFormats())
      .Group(group);
  line.Add("--raw", open.raw,
           "Layout of headerless data: DTYPE:ORDER:SIZES, e.g. f16:2LTHD:2,32,?,8,128, or "
           "a preset of kvtool formats, e.g. hicache:bf16:L=32,H=8,D=128")
      .Group(group);
  line.Add("--order", open.order,
           "Join the files of a folder as pages of one cache, in this order: a file with one name "
           "per line, or a pattern such as '*.data' (sorted by name)")
      .Group(group);
  line.Add("--model|--gguf,--model-config", gguf,
           "Model file that tells the heads: GGUF or config.json")
      .Group(group);
  line.Add("--kv-heads", kv_heads, "KV heads per layer, if the file does not say")
      .Between(1u, 1u << 20)
      .Group(group);
  line.Add("--head-dim", head_dim, "Head size, if the file does not say")
      .Between(1u, 1u << 20)
      .Group(group);
  line.Add("--k-pattern", open.k_pattern, "Name of K tensors, {i} = layer").Group(group);
  line.Add("--v-pattern", open.v_pattern, "Name of V tensors, {i} = layer").Group(group);
  line.Add("--layout", open.layout,
           "Axes of arrays, outermost first (thd, htd, bhtd, 2lthd ...); also chooses if two "
           "layouts fit. Of several inputs each takes the flags that its format has")
      .Group(group);
  line.Add("--input-dtype|--as", open.as_dtype,
           "Element type of untyped 16- or 8-bit arrays: bf16, f8_e4m3")
      .Group(group);
  line.Add("--rotated", open.rotated,
           "Whether a quantised cache is Hadamard-rotated: auto, yes, no")
      .OneOf({"auto", "yes", "no"})
      .Group(group);
  line.Add("--batch", open.batch, "Batch row of [B, ...] tensors").Group(group);
  line.Add("--base", open.bases,
           "Cache that an archive refers to or, in compress, may refer to: a snapshot or an "
           "archive of one (repeatable)")
      .KeepAll()
      .Group(group);
  line.Add("--profile", open.profiles,
           "Profile (.kvp) that an archive was or, in compress, is to be coded with, if it is not "
           "in "
           "the archive's folder (repeatable)")
      .KeepAll()
      .Group(group);
  line.Add("--max-bytes", limit.text,
           "Limit on inflated or derived data and on streams (default 64GiB)")
      .Group(group);
}

void SizeLimit::Declare(CommandLine& line, const std::string& what) {
  line.Add("--max-bytes", text, what);
}

std::optional<uint64_t> SizeLimit::most() const {
  if (text.empty()) return std::nullopt;
  return ParseSize(text, "--max-bytes");
}

void SizeLimit::Require(uint64_t source_bytes, const std::string& file) const {
  const std::optional<uint64_t> most = this->most();
  if (!most || source_bytes <= *most) return;
  throw Error(Finding::kLimit,
              fmt::format("the source has {} bytes, --max-bytes allows {}", source_bytes, *most))
      .File(file);
}

void SnapshotOptions::Files(CommandFiles& files) const {
  files.Reads(gguf);
  files.Reads(open.bases);
  files.Reads(open.profiles);
  std::error_code ignored;
  if (std::filesystem::exists(open.order, ignored)) files.Reads(open.order);  // else a pattern
}

Source SnapshotOptions::Open(const std::string& path) const {
  const std::optional<uint64_t> most = limit.most();
  return SizeLimit::WithHint([&] {
    Source source = Source::Open(path, most, FetchMode::kAsNeeded);
    if (ProbeKvz(source) == Confidence::kNo) source.NeedAll(most.value_or(kMostOfPipe));
    return source;
  });
}

OpenOptions SnapshotOptions::WithLimit() const {
  OpenOptions options = open;
  options.open = OpenSnapshot;
  if (const auto most = limit.most()) options.max_bytes = *most;
  return options;
}

OpenOptions SnapshotOptions::Resolve(FlagsFor inputs) const {
  OpenOptions options = WithLimit();
  options.is_shared = inputs == FlagsFor::kSeveral;
  if (!gguf.empty()) {
    const std::lock_guard lock(models_->mutex);
    std::shared_ptr<const FileSource>& model = models_->files[gguf];
    if (model == nullptr) model = FileSource::Open(gguf);
    options.geometry = ReadModelGeometry(model);
  }
  if (kv_heads != 0 || head_dim != 0) {
    if (!options.geometry) options.geometry.emplace();
    options.geometry->source = gguf.empty() ? (kv_heads != 0 ? "--kv-heads" : "--head-dim") : gguf;
    options.geometry->uniform = {.kv_heads = kv_heads, .k_dim = head_dim};
  }
  return options;
}

void OutputOptions::Declare(CommandLine& line, const std::string& what) {
  line.Add("-o,--output", path, what);
  line.AddFlag("-c,--stdout", to_stdout, "Write to standard output");
  line.AddFlag("-f,--force", force, "Overwrite outputs; write binary data to a terminal");
}

void ReportOptions::Declare(CommandLine& line, bool has_rows) {
  line.AddFlag("--json", json, "JSON document on standard output instead of the table");
  line.Add("--json-out", json_out, "Write the JSON document to a file");
  if (has_rows) {
    line.Add("--csv", csv, "Write the rows of the result as CSV; '-': instead of the table")
        .ValueName("FILE");
  }
  DeclareVersion(line);
  // What refuses to overwrite a file suggests -f.
  if (!line.Has("--force")) line.AddFlag("-f,--force", force, "Overwrite outputs");
}

void ReportOptions::DeclareVersion(CommandLine& line) {
  line.Add("--json-version", json_version,
           "Version of the JSON document: 2, the only one; can be left out")
      .Check([](const std::string& text) { return WrongJsonVersion(text); })
      .Environment(kJsonVersionVariable)
      .Group("Everywhere");
}

void ReportOptions::Files(CommandFiles& files) const {
  files.Writes(json_out, "--json-out");
  files.Writes(csv, "--csv");
  if (json && csv == "-") {
    throw Error(Finding::kUsage, "--csv -: --json has standard output already");
  }
}

namespace {

nlohmann::ordered_json DocumentOf(std::string_view name, const Value& result) {
  nlohmann::ordered_json document = ReportHeader(name);
  nlohmann::ordered_json members = ToJson(result);
  for (auto& [key, value] : members.items()) document.emplace(key, std::move(value));
  return document;
}

}  // namespace

void ReportOptions::Emit(Console& console, std::string_view name, const Value& result,
                         const OutputRules& rules) const {
  if (const auto* list = result.get_if<Value::List>()) {
    nlohmann::ordered_json documents = nlohmann::ordered_json::array();
    for (const Value& one : *list) documents.push_back(DocumentOf(name, one));
    Emit(console, std::move(documents), rules);
  } else {
    Emit(console, DocumentOf(name, result), rules);
  }
}

void ReportOptions::Emit(Console& console, nlohmann::ordered_json document,
                         const OutputRules& rules) const {
  if (CapturedRun* captured = console.captured()) {
    // A command over one input makes one, in an array or not.
    captured->document = std::move(document.is_array() ? document.at(0) : document);
    captured->rules = force ? RulesFor(true) : rules;
    return;
  }
  if (!wanted()) return;
  const OutputRules overwriting = force ? RulesFor(true) : rules;
  console.document().Hold(std::move(document), json, json_out, csv, overwriting);
}

void WriteText(const std::string& path, std::string_view text, const OutputRules& rules) {
  if (path.empty()) return;
  AtomicFile file(path, rules);
  file.Write(AsBytes(text));
  file.Commit();
}

void SelectionOptions::Declare(CommandLine& line) {
  const char* group = "Selecting parts";
  line.Add("--layers", layers, "Layers, e.g. 0-3,27; both ends belong to a range")
      .ValueName("RANGES")
      .Check(CheckedBy([](const std::string& text) { ParseIndexList(text, "--layers"); }))
      .Group(group);
  line.Add("--tokens", tokens, "Tokens, e.g. 0-511,1024- (to the last one)")
      .ValueName("RANGES")
      .Check(CheckedBy([](const std::string& text) { ParseRanges(text, "--tokens"); }))
      .Group(group);
  line.Add("--kv", kv, "k, v or both").OneOf({"k", "v", "both"}).Group(group);
}

Selection SelectionOptions::Resolve() const {
  Selection selection;
  if (!layers.empty()) selection.layers = ParseIndexList(layers, "--layers");
  if (!tokens.empty()) selection.tokens = ParseRanges(tokens, "--tokens");
  selection.keys = kv != "v";
  selection.values = kv != "k";
  return selection;
}

std::vector<TokenRange> ParseRanges(std::string_view text, std::string_view flag) {
  constexpr const char* kExpected = "ranges like 0-3,27";
  std::vector<TokenRange> ranges;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view item = text.substr(at, end - at);
    at = end + 1;
    const size_t sign = item.find_first_of("-:");
    const bool is_old = sign != item.npos && item[sign] == ':';
    const std::string_view first = item.substr(0, sign);
    if (first.empty() && !is_old) throw BadValue(flag, text, kExpected);
    TokenRange range;
    range.begin = first.empty() ? 0 : ParseWhole(first, flag, text);
    const std::string_view last = sign == item.npos ? first : item.substr(sign + 1);
    range.end = UINT64_MAX;
    if (!last.empty()) {
      const uint64_t number = ParseWhole(last, flag, text);
      range.end = is_old || number == UINT64_MAX ? number : number + 1;
    }
    if (range.begin >= range.end) {
      throw BadValue(flag, text, is_old ? "BEGIN before END, or ranges like 0-3,27" : kExpected);
    }
    ranges.push_back(range);
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const TokenRange& a, const TokenRange& b) { return a.begin < b.begin; });
  std::vector<TokenRange> joined;
  for (const TokenRange& range : ranges) {
    if (joined.empty() || joined.back().end < range.begin) {
      joined.push_back(range);
    } else {
      joined.back().end = std::max(joined.back().end, range.end);
    }
  }
  return joined;
}

std::vector<uint32_t> ParseIndexList(std::string_view text, std::string_view flag) {
  constexpr uint64_t kMost = 1'000'001;
  std::vector<uint32_t> list;
  for (const TokenRange& range : ParseRanges(text, flag)) {
    if (range.end > kMost) throw BadValue(flag, text, "ranges like 0-3,27");
    for (uint64_t i = range.begin; i < range.end; ++i) list.push_back(static_cast<uint32_t>(i));
  }
  return list;
}

namespace {

double ParseReal(std::string_view text, std::string_view flag, std::string_view whole) {
  const auto value = ParseNumber<double>(text);
  if (!value || !std::isfinite(*value)) {
    throw BadValue(flag, whole, "numbers like 2,3,3.5 or ranges like 2-4+0.5 and 2-16*2");
  }
  return *value;
}

// FIRST-LAST+STEP or FIRST-LAST*FACTOR; the end belongs to the range up to rounding.
void AppendRange(std::string_view item, size_t dash, std::string_view flag, std::string_view whole,
                 std::vector<double>& list) {
  constexpr size_t kMost = 1000;
  const size_t sign = item.find_first_of("+*", dash + 1);
  const double first = ParseReal(item.substr(0, dash), flag, whole);
  const double last = ParseReal(item.substr(dash + 1, sign - dash - 1), flag, whole);
  const bool factor = sign != item.npos && item[sign] == '*';
  const double step = sign == item.npos ? 1 : ParseReal(item.substr(sign + 1), flag, whole);
  if (first > last || (factor ? step <= 1 || first <= 0 : step <= 0)) {
    throw BadValue(flag, whole, "ranges that rise: FIRST-LAST+STEP or FIRST-LAST*FACTOR");
  }
  for (size_t i = 0;; ++i) {
    const double value = factor ? first * std::pow(step, static_cast<double>(i))
                                : first + step * static_cast<double>(i);
    if (value > last * (1 + 1e-9)) return;
    if (list.size() == kMost) throw BadValue(flag, whole, "at most 1000 values");
    list.push_back(value);
  }
}

}  // namespace

std::vector<double> ParseSweep(std::string_view text, std::string_view flag) {
  std::vector<double> list;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const size_t dash = item.find('-', 1);
    if (dash == item.npos) {
      list.push_back(ParseReal(item, flag, text));
    } else {
      AppendRange(item, dash, flag, text, list);
    }
    begin = end + 1;
  }
  return list;
}

uint64_t ParseSize(std::string_view text, std::string_view flag) {
  size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) != 0 || text[digits] == '.')) {
    ++digits;
  }
  const std::string_view unit = text.substr(digits);
  constexpr std::string_view kPrefixes = "KMGT";
  uint64_t scale = 1;
  if (!unit.empty()) {
    const size_t power = kPrefixes.find(unit[0]);
    if (power == kPrefixes.npos || (unit.size() > 1 && unit.substr(1) != "iB")) {
      throw BadValue(flag, text,
                     "a size such as 64KiB or 64K (= KiB); decimal units are ambiguous here");
    }
    scale = uint64_t{1} << (10 * (power + 1));
  }
  const auto number = ParseNumber<double>(text.substr(0, digits));
  const double value = number.value_or(0);
  const bool is_whole = scale > 1 || value == std::floor(value);
  if (!number || !is_whole || value * static_cast<double>(scale) >= 0x1p63) {
    throw BadValue(flag, text, "a size such as 64KiB");
  }
  return static_cast<uint64_t>(std::llround(value * static_cast<double>(scale)));
}

nlohmann::ordered_json ReportHeader(std::string_view name) {
  nlohmann::ordered_json document;
  document["schema"] = fmt::format("kvtool.{}/1", name);
  document["tool"] = {{"name", "kvtool"}, {"version", KVTOOL_VERSION}, {"git", KVTOOL_GIT}};
  return document;
}

nlohmann::ordered_json InputRecord(const Source& source) {
  return ToJson(HashedFileFields().Object(HashedFile::Of(source)));
}

}  // namespace kv
