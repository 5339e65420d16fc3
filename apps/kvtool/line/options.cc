// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/kvtool/documents/document_fields.h"
#include "formats/key_pairs.h"
#include "formats/kvz/kvz.h"
#include "formats/model_config/model_config.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/core/base/parallel.h"
#include "lib/remote/url.h"
#include "version.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

const std::vector<std::string> kWhenWords = {"auto", "always", "never"};

When ParseWhen(const std::string& word) {
  return word == "always"  ? When::kAlways
         : word == "never" ? When::kNever
         : word == "json"  ? When::kJson
                           : When::kAuto;
}

bool IsFileName(const std::string& path) { return fs::path(path).extension() == ".svg"; }
bool IsPdfName(const std::string& path) { return fs::path(path).extension() == ".pdf"; }

std::string ProgramText() {
  return fmt::format("kvtool {}, commit {}", KVTOOL_VERSION, kBuildCommit);
}

// Returns the path of each picture. If `svg` is a folder, all are in it. If it is a file, a single
// picture is that file; several are beside it, with their names appended to its name.
std::vector<std::string> ListPlaces(const std::vector<report::PictureFile>& pictures,
                                    const std::string& svg) {
  if (pictures.size() == 1 && (IsFileName(svg) || DescriptorNamed(svg))) return {svg};
  std::vector<std::string> places;
  for (const report::PictureFile& picture : pictures) {
    const fs::path path(svg);
    places.push_back(
        IsFileName(svg)
            ? (path.parent_path() / (path.stem().string() + "-" + picture.name)).string()
            : (path / picture.name).string());
  }
  return places;
}

}  // namespace

void GlobalOptions::Declare(CommandLine& line) {
  const CommandLine::Heading heading(line, kEverywhere);
  line.Add("-T,--threads", threads, "Threads, 0 = all usable CPUs")
      .Environment("KVTOOL_THREADS")
      .Between(0, 1024);
  line.Add("--simd", simd, "Use one SIMD target (see kvtool targets)").Environment("KVTOOL_SIMD");
  line.Add("--progress", progress,
           "Progress line: auto, always, never, or json: lines for programs, on standard error")
      .OneOf({"auto", "always", "never", "json"});
  line.OnFlag(
      "--no-progress", [this] { progress = "never"; }, "No progress line");
  line.Add("--color", colour, "Colour: auto, always, never").OneOf(kWhenWords);
  line.OnFlag(
      "--no-color", [this] { colour = "never"; }, "No colour");
  line.AddFlag("--deterministic", deterministic, "Omit times and the machine from reports");
  line.AddFlag(
      "-v,--verbose", verbose,
      "Also print what was read and written, to the byte; -vv: also where settings came from");
  line.AddFlag(
      "-q,--quiet", quiet,
      "Print only errors and what --json or -c asks for; -qq: nothing, only the exit status");
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

void SnapshotOptions::Declare(CommandLine& line, TransformFlag transform) {
  const CommandLine::Heading heading(line, "Reading the snapshot");
  line.Add("--from", open.from, "Format of the input (default: detected by its bytes)")
      .Suggest(ReadableFormats());
  line.Add("--raw", open.raw,
           "Layout of headerless data: DTYPE:ORDER:SIZES, e.g. f16:2LTHD:2,32,?,8,128, or a preset "
           "of kvtool formats, e.g. hicache:bf16:L=32,H=8,D=128");
  line.Add("--order", open.order,
           "Join the files of a folder as pages of one cache, in this order: a file with one name "
           "per line, or a pattern such as '*.data' (sorted by name)");
  line.Add("--model|--gguf,--model-config", gguf,
           "Model file that gives the heads: GGUF or config.json")
      .Essential();
  line.Add("--kv-heads", kv_heads, "KV heads per layer, if the file does not say")
      .Between(1u, 1u << 20)
      .Essential();
  line.Add("--head-dim", head_dim, "Head size, if the file does not say").Between(1u, 1u << 20);
  line.Add("--k-pattern", open.k_pattern, "Name of K tensors, {i} = layer");
  line.Add("--v-pattern", open.v_pattern, "Name of V tensors, {i} = layer");
  line.Add("--layout", open.layout,
           "Axes of arrays, outermost first (thd, htd, bhtd, 2lthd ...); decides if two layouts "
           "fit. With several inputs, each uses the flags that its format has");
  line.Add("--input-dtype|--as", open.as_dtype,
           "Element type of untyped 16- or 8-bit arrays: bf16, f8_e4m3");
  line.Add("--rotated", open.rotated,
           "Whether a quantised cache is Hadamard-rotated: auto, yes, no")
      .OneOf({"auto", "yes", "no"});
  line.Add("--batch", open.batch, "Batch row of [B, ...] tensors");
  line.Add("--base", open.bases,
           "Cache that an archive refers to or, in compress, may refer to: a snapshot or an "
           "archive of one (repeatable)")
      .KeepAll();
  line.Add("--profile", profiles,
           "Profile (.kvp) of an archive or frame, if it is not in the same folder; in compress "
           "and bench, the profile to code with (repeatable)")
      .KeepAll();
  if (transform == TransformFlag::kOfArchives) {
    line.Add("--transform", open.transforms,
             "Transform (.kvx) of a lossy archive, if it is not in the same folder (repeatable)")
        .KeepAll();
  }
  line.Add("--max-bytes", limit.text,
           "Limit on inflated or derived data and on streams (default: 64GiB)");
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
  throw Error(Finding::kLimit, "the source has {} bytes, --max-bytes allows {}", source_bytes,
              *most)
      .File(file);
}

void RequireThere(const std::vector<std::string>& paths) {
  std::error_code failed;
  for (const std::string& path : paths) {
    if (remote::IsUrl(path) || fs::exists(path, failed)) continue;
    throw Error(Finding::kOpenFailed, "cannot open: No such file or directory").File(path);
  }
}

void SnapshotOptions::Files(CommandFiles& files) const {
  files.Reads(gguf);
  files.Reads(open.bases);
  files.Reads(open.transforms);
  files.Reads(profiles);
  std::error_code ignored;
  if (std::filesystem::exists(open.order, ignored)) files.Reads(open.order);  // otherwise a pattern
}

Source SnapshotOptions::Open(const std::string& path) const {
  const std::optional<uint64_t> most = limit.most();
  return SizeLimit::WithHint([&] {
    Source source = Source::Open(path, most, FetchMode::kAsNeeded);
    if (ProbeKvz(source) == Confidence::kNo) source.NeedAll(most.value_or(kMostOfPipe));
    return source;
  });
}

std::string SnapshotOptions::ModelName(const std::string& told) const {
  const fs::path file(gguf);
  const bool is_config = file.filename() == "config.json" && file.has_parent_path();
  return told.empty() ? (is_config ? file.parent_path() : file).filename().string() : told;
}

OpenOptions SnapshotOptions::WithLimit() const {
  OpenOptions options = open;
  options.open = OpenSnapshot;
  if (const auto most = limit.most()) options.max_bytes = *most;
  const std::lock_guard lock(models_->mutex);
  for (const std::string& path : profiles) {
    std::shared_ptr<const Profile>& profile = models_->profiles[path];
    if (profile == nullptr) profile = OpenProfile(path);
    options.profiles.push_back({path, profile});
  }
  return options;
}

OpenOptions SnapshotOptions::Resolve(FlagsFor inputs) const {
  OpenOptions options = WithLimit();
  options.is_shared = inputs == FlagsFor::kSeveral;
  RequireThere(options.bases);
  RequireThere(options.transforms);
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

const GivenProfile* ProfileToCodeWith(const OpenOptions& options, std::span<const Effort> levels) {
  if (options.profiles.empty()) return nullptr;
  if (options.profiles.size() > 1)
    throw Error(Finding::kUsage, "chunks are coded with one profile: give one --profile");
  if (std::ranges::none_of(levels, [](Effort level) { return level >= Effort::kDefault; }))
    throw Error(Finding::kUsage, "--profile serves the levels default, high and max");
  return &options.profiles.front();
}

void OutputOptions::Declare(CommandLine& line, const std::string& what) {
  line.Add("-o,--output", path, what);
  line.AddFlag("-c,--stdout", to_stdout, "Write to standard output");
  line.AddFlag("-f,--force", force, "Overwrite outputs; write binary data to a terminal");
}

void OutputOptions::RequireStdout(const Console& console, bool json, std::string_view what) const {
  if (!force && console.stdout_is_terminal()) {
    throw Error(Finding::kUsage, "binary data is not written to a terminal")
        .Hint("redirect the output, give -o FILE, or write it anyway with -f");
  }
  if (json) {
    throw Error(Finding::kUsage, "{} and --json both go to standard output", what)
        .Hint("give --json-out FILE");
  }
}

void ReportOptions::Declare(CommandLine& line) {
  line.AddFlag("--json", json, "JSON document on standard output instead of the table").Essential();
  line.Add("--json-out", json_out, "Write the JSON document to a file");
  line.Add("--csv", csv, "Write the rows of the result as CSV; '-': to stdout, no table")
      .ValueName("FILE");
  DeclareVersion(line);
  // Refusals to overwrite a file suggest -f.
  if (!line.Has("--force")) line.AddFlag("-f,--force", force, "Overwrite outputs");
}

void ReportOptions::DeclareVersion(CommandLine& line) {
  line.Add("--json-version", json_version,
           "Version of the JSON document: 2, the only one; can be left out")
      .Check([](const std::string& text) { return WrongJsonVersion(text); })
      .Environment(kJsonVersionVariable)
      .Group(kEverywhere);
}

void ReportOptions::Files(CommandFiles& files) const {
  files.Writes(json_out, "--json-out");
  files.Writes(csv, "--csv");
  if (json && DescriptorNamed(csv) == STDOUT_FILENO) {
    throw Error(Finding::kUsage, "--csv {}: --json has standard output already", csv);
  }
}

namespace {

nlohmann::ordered_json MakeDocument(std::string_view name, const Value& result) {
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
    for (const Value& one : *list) documents.push_back(MakeDocument(name, one));
    Emit(console, std::move(documents), rules);
  } else {
    Emit(console, MakeDocument(name, result), rules);
  }
}

void ReportOptions::Emit(Console& console, nlohmann::ordered_json document,
                         const OutputRules& rules) const {
  if (CapturedRun* captured = console.captured()) {
    // A command over one input makes one document, in an array or not.
    captured->document = std::move(document.is_array() ? document.at(0) : document);
    captured->rules = force ? RulesFor(true) : rules;
    return;
  }
  if (!wanted()) return;
  const OutputRules overwriting = force ? RulesFor(true) : rules;
  console.document().Hold(std::move(document), json, json_out, csv, overwriting);
}

void SelectionOptions::Declare(CommandLine& line) {
  const CommandLine::Heading heading(line, "Selecting parts");
  line.Add("--layers", layers, "Layers, e.g. 0-3,27; both ends belong to a range")
      .ValueName("RANGES")
      .Check(CheckedBy([](const std::string& text) { ParseIndexList(text, "--layers"); }));
  line.Add("--tokens", tokens, "Tokens, e.g. 0-511,1024- (from 1024 to the last)")
      .ValueName("RANGES")
      .Check(CheckedBy([](const std::string& text) { ParseRanges(text, "--tokens"); }));
  line.Add("--kv", kv, "k, v or both").OneOf({"k", "v", "both"});
}

Selection SelectionOptions::Resolve() const {
  Selection selection;
  if (!layers.empty()) selection.layers = ParseIndexList(layers, "--layers");
  if (!tokens.empty()) selection.tokens = ParseRanges(tokens, "--tokens");
  selection.keys = kv != "v";
  selection.values = kv != "k";
  return selection;
}

nlohmann::ordered_json InputRecord(const Source& source) {
  return ToJson(HashedFileFields().Object(HashedFile::Of(source)));
}

void PageOptions::Declare(CommandLine& line, const std::string& of) {
  line.Add("--html-out", html, "Write the report as a self-contained page" + of).Essential();
  line.Add("--svg-out", svg,
           "Write the page's pictures as SVG: into a folder, created if needed, each named for "
           "what it shows; or as NAME.svg for a single picture and NAME-....svg for several");
  line.Add("--figure-out", figure,
           "Write the most important picture, captioned for a paper, as NAME.svg or NAME.pdf")
      .ValueName("FILE")
      .Check([](const std::string& text) {
        return IsFileName(text) || IsPdfName(text)
                   ? std::string()
                   : fmt::format("a name that ends in .svg or .pdf expected, not {}",
                                 Printable(text));
      });
}

// Returns name, size and hash of an input for the footer of a page. An input that cannot be read
// again (a pipe), or has changed meanwhile, is named only.
std::string InputText(const std::string& path) {
  const auto text = [](const HashedFile& file) {
    return fmt::format("{}: {} bytes, XXH3 {}", Printable(file.file), file.bytes, file.xxh3);
  };
  std::error_code failed;
  const fs::file_type type = fs::status(path, failed).type();
  if (type != fs::file_type::regular && type != fs::file_type::directory) {
    return Printable(path) + ": not a file, not hashed";
  }
  try {
    if (const auto known = HashedFile::Known(path)) return text(*known);
    return text(HashedFile::Of(Source::Open(path)));
  } catch (const Error&) {
    return Printable(path) + ": can no longer be read";
  }
}

report::Origin DescribeOrigin(const FileUser& command, const Console& console) {
  report::Origin origin{ProgramText(), console.command_line, {}};
  CommandFiles files;
  command.Files(files);
  for (const std::string& path : files.inputs()) origin.inputs.push_back(InputText(path));
  return origin;
}

// Files in an existing folder are checked once their names are known.
void PageOptions::Files(CommandFiles& files) const {
  files.Writes(html, "--html-out");
  files.Writes(figure, "--figure-out");
  std::error_code ignored;
  if (!fs::is_directory(svg, ignored)) files.Writes(svg, "--svg-out");
}

void PageOptions::Write(const report::Page& page, const FileUser& command, Console& console,
                        const OutputRules& rules) const {
  // All places are checked before anything is written.
  for (const std::string& place : CheckedPlaces(page, command)) {
    std::error_code ignored;
    if (fs::is_regular_file(place, ignored)) output::RefuseExisting(place, rules.overwrite);
  }
  if (!html.empty()) WriteText(html, page.Text(DescribeOrigin(command, console)), rules);
  WritePictures(page, command, console, rules);
}

void PageOptions::WriteFigure(const report::Page& page, Console& console,
                              const OutputRules& rules) const {
  const std::optional<report::PictureFile> file = page.Featured(ProgramText());
  if (!file) return console.Warn(figure, "nothing to draw: no figure is written");
  WriteText(figure, IsPdfName(figure) ? file->picture.Pdf() : file->Text(), rules);
  console.Say(fmt::format("{}: written", Printable(figure)), 1);
}

std::vector<std::string> PageOptions::CheckedPlaces(const report::Page& page,
                                                    const FileUser& command) const {
  const std::vector<report::PictureFile>& pictures = page.pictures();
  if (svg.empty() || pictures.empty()) return {};
  if (DescriptorNamed(svg) && pictures.size() > 1) {
    throw Error(Finding::kUsage, "--svg-out: {} pictures cannot be written to one stream",
                pictures.size())
        .File(svg)
        .Hint("give a folder");
  }
  std::vector<std::string> places = ListPlaces(pictures, svg);
  CommandFiles files;
  command.Files(files);
  for (const std::string& place : places) {
    if (place != svg) files.Writes(place, "--svg-out");
  }
  files.Check();
  return places;
}

void PageOptions::WritePictures(const report::Page& page, const FileUser& command, Console& console,
                                const OutputRules& rules) const {
  if (!figure.empty()) WriteFigure(page, console, rules);
  if (svg.empty()) return;
  const std::vector<std::string> places = CheckedPlaces(page, command);
  if (places.empty()) return console.Warn(svg, "nothing to draw: no picture is written");
  std::error_code failed;
  if (!IsFileName(svg) && !DescriptorNamed(svg)) fs::create_directories(svg, failed);
  if (failed) throw Error(Finding::kWriteFailed, failed.message()).File(svg);
  for (size_t i = 0; i < places.size(); ++i) {
    WriteText(places[i], page.pictures()[i].Text(), rules);
    console.Say(fmt::format("{}: written", Printable(places[i])), 1);
  }
}

void RopeOptions::Declare(CommandLine& line, const char* group) {
  DeclareUnpaired(line, group);
  const CommandLine::Heading heading(line, group);
  line.Add("--rope-style", style,
           "neox (halves) or gptj (neighbours) (default: the file's order, else neox)")
      .OneOf({"neox", "gptj"});
}

void RopeOptions::DeclareUnpaired(CommandLine& line, const char* group) {
  const CommandLine::Heading heading(line, group);
  line.Add("--rope-base|--rope-theta", base, "RoPE base theta (default: from --model)").Positive();
  line.Add("--rope-dims|--rope-dim", dims,
           "Rotated dims of a head (default: from --model, or all)");
  line.Add("--rope-scaling", scaling,
           "none, linear:FACTOR, llama3[:FACTOR,LOW,HIGH,ORIGINAL], "
           "yarn:FACTOR,ORIGINAL[,FAST,SLOW[,ATTENTION]] or dynamic:FACTOR,ORIGINAL (default: from "
           "--model, or none)");
  line.Add("--rope-freqs", freqs,
           "File with the frequency of each pair (inv_freq): .npy, or numbers as text");
}

std::optional<ModelRope> RopeOptions::Resolve(const OpenOptions& options,
                                              const Snapshot* keys) const {
  ModelRope model;
  bool known = FromModel(options, model);
  if (base != 0 || !scaling.empty() || !freqs.empty()) model.layers.clear();
  if (base != 0) model.rope.theta = base;
  if (!scaling.empty()) model.rope.scaling = ParseScaling(scaling);
  if (!freqs.empty()) {
    model.rope.scaling = {};
    model.rope.scaling.kind = RopeScaling::Kind::kGiven;
    model.rope.scaling.frequencies = ReadFrequencies(freqs);
    model.rope.rotary_dim = static_cast<uint32_t>(2 * model.rope.scaling.frequencies.size());
  }
  known = known || base != 0 || !freqs.empty();
  if (!known) return std::nullopt;
  const std::optional<RopePairs> pairs = PairsFor(options, keys);
  const auto finish = [&](Rope& rope) {
    if (dims != 0) rope.rotary_dim = dims;
    if (pairs) rope.pairs = *pairs;
  };
  finish(model.rope);
  for (Rope& rope : model.layers) finish(rope);
  return model;
}

std::optional<RopePairs> RopeOptions::PairsFor(const OpenOptions& options,
                                               const Snapshot* keys) const {
  if (!style.empty()) return ParsePairs(style);
  if (keys == nullptr) return std::nullopt;
  switch (FindKeyPairs(*keys, options.geometry)) {
    case KeyPairs::kHalves:
      return RopePairs::kHalves;
    case KeyPairs::kNeighbours:
      return RopePairs::kNeighbours;
    case KeyPairs::kNone:
      return std::nullopt;
    case KeyPairs::kUnknown:
      break;
  }
  // A GGUF has the order of llama.cpp's caches, a config.json that of transformers.
  const bool is_told = options.geometry && options.geometry->file != nullptr;
  const bool has_owner = FindPairsOwner(*keys) != PairsOwner::kUnknown;
  if (!is_told ||
      (has_owner && (!options.geometry->rope_style.empty() || keys->engine != kPairsOfLlama)))
    return std::nullopt;
  throw Error(Finding::kUsage,
              "it is not known which dimensions of a head RoPE pairs in {}'s caches of this model",
              keys->engine)
      .File(keys->source.path)
      .Hint(has_owner ? "give the GGUF as --model, or --rope-style"
                      : "give --rope-style: neox (halves) or gptj (neighbours)");
}

std::optional<ModelRope> RopeOptions::ResolveOrWarn(const OpenOptions& options,
                                                    const Snapshot* keys,
                                                    std::string_view consequence,
                                                    Console& console) const {
  try {
    return Resolve(options, keys);
  } catch (const Error& error) {
    const bool by_flags = base != 0 || !scaling.empty() || !freqs.empty();
    if (by_flags || error.code() == ErrorCode::kUsage) throw;
    console.Warn(error.file(), fmt::format("{}: {}{}{}", error.message(), consequence,
                                           error.hint().empty() ? "" : "; ", error.hint()));
    return std::nullopt;
  }
}

bool RopeOptions::FromModel(const OpenOptions& options, ModelRope& model) const {
  if (!options.geometry || options.geometry->file == nullptr) return false;
  try {
    const auto told = ReadModelRope(*options.geometry->file);
    if (told) model = *told;
    return told.has_value();
  } catch (const Error&) {
    // These flags replace the model file, so it is not needed.
    if (base != 0 || !freqs.empty()) return false;
    throw;
  }
}

}  // namespace kv
