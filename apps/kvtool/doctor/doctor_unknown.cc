// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Diagnoses files that are not caches: logs, suites, stores, profiles, documents, and files without
// a header.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/doctor/doctor.h"
#include "formats/gguf/gguf.h"
#include "formats/kvx/kvx.h"
#include "formats/model_config/model_config.h"
#include "formats/plan/plan.h"
#include "formats/raw/raw.h"
#include "formats/registry.h"
#include "formats/torch/torch.h"
#include "formats/trace/trace.h"
#include "formats/weights_file.h"
#include "lib/core/codec/planes/gear.h"
#include "lib/core/codec/profiled/profile.h"
#include "lib/engines/llamacpp/logs/logs.h"
#include "lib/engines/mnn/gate/engine.h"
#include "lib/study/gate/summary_view.h"
#include "lib/study/statistics/tensor_stats.h"

namespace kv {
namespace {

constexpr size_t kHeadBytes = 4096, kPlanesBytes = 256 << 10;

std::string_view ReadHead(const Source& source) {
  if (source.is_folder || source.files.size() != 1) return {};
  return AsText(source.files[0].data->bytes()).substr(0, kHeadBytes);
}

void IsSound(std::string_view text, Diagnosis& out) {
  out.sound = Diagnosis::Sound::kYes;
  out.sound_text = text;
}

bool IsModel(const Source& source, Diagnosis& out) {
  const std::string_view head = ReadHead(source);
  const bool gguf = head.starts_with("GGUF");
  if (!gguf && !(head.starts_with('{') && head.find("num_hidden_layers") != head.npos))
    return false;
  const FileSource& file = *source.files[0].data;
  const ModelGeometry model = gguf ? ReadGgufGeometry(file) : ReadConfigGeometry(file);
  out.kind = "model";
  out.format = gguf ? "gguf" : "config";
  const ModelGeometry::Layer layer = model.layers.empty() ? model.uniform : model.layers.front();
  out.what = fmt::format("a model, no cache ({}{}{}): {}, {} of {}", gguf ? "GGUF" : "config.json",
                         model.architecture.empty() ? "" : ", ", Printable(model.architecture),
                         Plural(model.layers.size(), "layer"), Plural(layer.kv_heads, "kv head"),
                         layer.k_dim);
  IsSound("its header is valid; the weights were not checked", out);
  out.Suggest("kvtool inspect CACHE --model " + ShellWord(out.file),
              "reads a cache of this model, with layers and heads from this file",
              "CACHE: a KV cache that the model left");
  return true;
}

std::string FindSchema(std::string_view head) {
  const size_t first = head.find_first_not_of(" \t\r\n");
  // A configuration of the gate may have comments.
  if (first == head.npos || std::string_view("{[/").find(head[first]) == head.npos) return {};
  size_t at = head.find("\"schema\"");
  if (at == head.npos) return {};
  at = head.find("\"kvtool.", at);
  if (at == head.npos) return {};
  const size_t end = head.find('"', at + 1);
  return end == head.npos ? "" : std::string(head.substr(at + 8, end - at - 8));
}

// Recognises documents of kvtool, which name their kind.
bool IsDocument(const Source& source, Diagnosis& out) {
  const std::string schema = FindSchema(ReadHead(source));
  const std::string name = schema.substr(0, schema.find('/'));
  if (name.empty() || name == "trace-block-scores") return false;
  const std::string file = ShellWord(out.file);
  out.format = Escaped("kvtool." + schema, 80);
  if (name == "h2o-plan") {
    out.kind = "plan";
    uint64_t events = 0;
    const PlanHeader plan =
        ReadPlan(*source.files[0].data, [&](uint64_t, const PlanEvent&) { ++events; });
    out.what =
        fmt::format("an eviction plan of {} ({}), {} events, made for {}", Printable(plan.policy),
                    Printable(plan.schedule), Grouped(events),
                    plan.source_file.empty() ? "an unnamed cache" : Printable(plan.source_file));
    IsSound("every event is valid; 'plan check' compares the plan with its cache", out);
    out.Suggest("kvtool plan check " + file + " --snapshot CACHE --kv-heads N",
                "checks whether the plan fits that cache",
                "CACHE: the cache it is for, N: the model's kv heads");
    return true;
  }
  out.kind = "document";
  out.what = fmt::format("a document of kvtool ({})", out.format);
  out.sound_text = "not checked: only its beginning was read";
  if (schema == "gate/1") {
    out.Suggest("kvtool report " + file, "shows the verdict, case by case");
  } else if (name == "results" || name == "result") {
    out.Suggest("kvtool merge " + file, "adds the results up");
  } else if (name == "corpus") {
    out.Suggest("kvtool corpus check " + file, "checks whether the caches are unchanged");
    out.Suggest("kvtool inspect --corpus " + file, "shows each cache of the corpus");
  } else if (name == "gate-config") {
    out.Suggest("kvtool gate " + file, "runs the quality gate of the config");
  } else if (std::all_of(name.begin(), name.end(),
                         [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; })) {
    out.Suggest("kvtool schema " + name, "explains the keys of a config");
  }
  return true;
}

// Counts the cases of a summary.json that an engine's suite wrote; empty for other documents.
std::string SuiteCases(const SourceFile& file) {
  const std::string_view text = AsText(file.data->bytes());
  if (text.size() > kWholeFileBytes || !text.starts_with('{') ||
      text.find("\"overall_pass\"") == text.npos) {
    return {};
  }
  const gate::SummaryView view = gate::MakeView(gate::ParseSummary(text, file.name), mnn::Engine());
  const bool has_names = std::all_of(view.cases.begin(), view.cases.end(), [](const auto& one) {
    return !one.suite.empty() && !one.mode.empty();
  });
  if (!view.is_original || view.cases.empty() || !has_names) return {};
  return fmt::format("{} cases, of which it says that {} passed", view.cases.size(),
                     view.Count(gate::Status::kPass));
}

// Recognises the summary.json of an engine's test suite, and the folder around it.
bool IsSuite(const Source& source, Diagnosis& out) {
  const SourceFile* summary = source.is_folder ? source.Find("summary.json") : &source.files.at(0);
  std::string cases = summary == nullptr ? std::string() : SuiteCases(*summary);
  if (cases.empty() && source.is_folder) {
    uint64_t found = 0;
    for (const std::string_view name : mnn::Engine().case_names) {
      found += std::any_of(source.files.begin(), source.files.end(), [&](const SourceFile& file) {
        return file.name.starts_with(std::string(name) + "/") ||
               file.name.starts_with(std::string(name) + ".console.log");
      });
    }
    if (found > 0) cases = fmt::format("{} cases, no summary.json", found);
  }
  if (cases.empty()) return false;
  out.kind = "document";
  out.what = fmt::format("the {} of an engine's test suite: {}",
                         source.is_folder ? "output folder" : "summary.json", cases);
  out.sound_text = "not checked: the gate judges it";
  // Without the logs of its cases the folder is no suite for the gate, but its summary is.
  const bool is_lone = !source.is_folder || source.files.size() == 1;
  const std::string file =
      ShellWord(source.is_folder && is_lone
                    ? (std::filesystem::path(out.file) / source.files[0].name).string()
                    : out.file);
  out.Suggest("kvtool gate --engine-logs " + file, "judges these files by every rule of the suite");
  if (is_lone) {
    out.Suggest("kvtool report " + file, "shows the summary; several summaries make a history");
  }
  return true;
}

bool IsText(std::string_view head) {
  return !head.empty() && std::all_of(head.begin(), head.end(), [](unsigned char c) {
    return c >= 0x20 || c == '\n' || c == '\r' || c == '\t';
  });
}

// Returns a rule of the gate that all cases of logs satisfy with a margin of a tenth, such as
// "tokens_per_second>=40.3"; "" if they have no figure that rules usually judge.
std::string FindKeptRule(const std::vector<gate::CaseResult>& cases) {
  for (const char* name :
       {"decode_gate_tps", "candidate_decode_tps_avg", "prompt_tokens_per_second", "loss.mean_kl",
        "loss.perplexity", "resident_bytes.peak"}) {
    const gate::MetricInfo& metric = *mnn::Engine().FindMetric(name);
    const bool more_is_better = metric.better == gate::Better::kHigher;
    std::vector<double> values;
    for (const gate::CaseResult& item : cases)
      values.push_back(item.measured.Value(name).value_or(0));
    std::erase_if(values, [](double value) { return value <= 0; });
    if (values.empty()) continue;
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    return fmt::format("{}{}{:.3g}", metric.word.empty() ? metric.name : metric.word,
                       more_is_better ? ">=" : "<=", more_is_better ? 0.9 * *least : 1.1 * *most);
  }
  return {};
}

// Recognises logs of engines, in a file or a folder of texts.
bool IsLog(const Source& source, Diagnosis& out) {
  constexpr uint64_t kMostOfLogs = 16 << 20;
  if (source.total_bytes() > kMostOfLogs) return false;
  const bool is_text =
      std::all_of(source.files.begin(), source.files.end(), [](const SourceFile& file) {
        return IsText(AsText(file.data->bytes()).substr(0, kHeadBytes));
      });
  if (!is_text) return false;
  std::string_view whose = "llama.cpp";
  std::vector<gate::CaseResult> cases = llamacpp::ReadLogs(out.file).cases;
  const std::string rule = cases.empty() ? "" : FindKeptRule(cases);
  if (cases.empty()) {
    mnn::logs::EngineLogsInput input;
    input.path = out.file;
    cases = mnn::ReadLogs(input).cases;             // throws if no file is a log
    if (FindKeptRule(cases).empty()) return false;  // another program's tables or lines
    whose = "MNN";
  }
  out.kind = "log";
  out.what = fmt::format("{} of {}, {}", source.is_folder ? "a folder of logs" : "a log", whose,
                         HumanBytes(source.total_bytes()));
  out.sound_text = "not checked: the gate judges it";
  const std::string judge = "kvtool gate --engine-logs " + ShellWord(out.file);
  if (rule.empty()) {
    out.Suggest(judge, "its speeds, sizes and losses, and the rules that they break");
  } else {
    out.Suggest(judge + " --require " + ShellQuoted(rule),
                "its speeds, sizes and losses, with a limit a tenth below its own figure");
  }
  return true;
}

// Recognises a store of states.
bool IsStore(const Source& source, Diagnosis& out) {
  if (!source.is_folder || source.Find("kvtool-store") == nullptr) return false;
  uint64_t states = 0;
  bool has_index = false, has_folder = false;
  for (const SourceFile& file : source.files) {
    states += file.name.starts_with("states/") && file.name.ends_with(".kvs");
    has_index |= file.name == "index.sqlite";
    has_folder |= file.name.starts_with("index.sqlite/");
  }
  has_folder |= std::find(source.empty_folders.begin(), source.empty_folders.end(),
                          "index.sqlite") != source.empty_folders.end();
  out.kind = "store";
  out.what = fmt::format("a store of kvtool: {}, {}", Plural(states, "state"),
                         HumanBytes(source.total_bytes()));
  out.sound_text = "not checked: 'store verify' checks every state";
  const std::string store = ShellWord(out.file);
  if (has_folder) {
    out.Find("a folder has the name of its index");
    const std::string index = (std::filesystem::path(out.file) / "index.sqlite").string();
    out.Suggest(fmt::format("mv {} {}", ShellWord(index), ShellWord(FreeName(out.file + ".index"))),
                "moves the folder out of the store");
  } else if (!has_index && states > 0) {
    out.Find("it has no index");
  }
  if (!out.findings.empty()) {
    out.Suggest("kvtool store verify --repair " + store, "makes a new index of the store");
    return true;
  }
  out.Suggest("kvtool store list " + store, "lists the states, and what each costs");
  out.Suggest("kvtool store verify " + store, "checks that every state can be restored");
  out.Suggest("kvtool store stats " + store, "shows what was added, and its size on the disk");
  return true;
}

// Describes a file that was learnt from caches; `model` reads the name of their model. Damage is
// its fault; `use` is suggested if there is none.
template <typename F>
void LookAtLearnt(F&& model, Diagnosis::Step use, Diagnosis& out) {
  try {
    const std::string name = model();
    out.what += ", learnt from caches of ";
    out.what += name.empty() ? "a model without a name" : Printable(name);
    IsSound("it can be read, and its checksum matches", out);
    out.Suggest("kvtool inspect " + ShellWord(out.file), "shows what the file was learnt from");
    out.next.push_back(std::move(use));
  } catch (const Error& error) {
    out.Find(fmt::format("{} [{}]", Printable(error.message()), FindingId(error.finding())));
    out.Suggest("kvtool explain " + FindingId(error.finding()), "explains the fault and the fix");
  }
}

// Recognises what `train` writes: a profile of a model's keys and values, or a transform of them.
bool IsLearnt(const Source& source, Diagnosis& out) {
  if (source.is_folder || source.files.size() != 1) return false;
  const ByteSpan bytes = source.files[0].data->bytes();
  const std::string file = ShellWord(out.file);
  if (Profile::HasMagic(bytes)) {
    out.kind = "profile";
    out.format = "kvp";
    out.what = "a profile for short chunks";
    LookAtLearnt([&] { return Profile::Read(bytes)->name(); },
                 {"kvtool compress CACHE --profile " + file + " -o CACHE.kvz",
                  "an archive that is coded with it", "CACHE: a cache of this model"},
                 out);
    return true;
  }
  if (!LooksLikeTransform(bytes)) return false;
  out.kind = "transform";
  out.format = "kvx";
  out.what = "a transform of K and V";
  LookAtLearnt(
      [&] { return ReadTransform(bytes).model; },
      {"kvtool replay quant RUN --transform " + file + " --k kvtc:8 --v kvtc:8",
       "what keeping caches in it would save and cost", "RUN: a recorded run of this model"},
      out);
  return true;
}

// Describes a checkpoint of a compressor, even one with a fault. Throws for other files.
void LookAtCheckpoint(const Source& source, Diagnosis& out) {
  WeightsOpenOptions options;
  options.max_bytes = out.max_bytes;
  out.what = fmt::format("weights of a KV compressor ({})", Name(DetectWeights(source)));
  try {
    const WeightsHeader header = OpenWeights(source, options).weights.header;
    out.what += fmt::format(", {} of {}", Plural(header.num_layers, "layer"),
                            Plural(header.blocks_per_layer, "block"));
  } catch (const Error& error) {
    if (!HoldsCompressor(source, options.max_bytes)) throw;
    out.Find(fmt::format("{} [{}]", Printable(error.message()), FindingId(error.finding())));
  }
}

bool IsWeights(const Source& source, Diagnosis& out) {
  if (source.is_folder || source.files.size() != 1) return false;
  const bool by_magic = LooksLikeKvcm(source.files[0].data->bytes());
  if (source.total_bytes() > 4 * kWholeFileBytes && !by_magic) return false;
  if (by_magic) {
    const WeightsVerdict verdict = VerifyWeights(source);
    for (const WeightsFault& found : verdict.faults) out.Find(found.ToError().message());
    out.what = "weights of a KV compressor (.bin of the engine)";
  } else {
    LookAtCheckpoint(source, out);
  }
  out.kind = "weights";
  out.format = by_magic ? "bin" : std::string(Name(DetectWeights(source)));
  if (out.findings.empty()) IsSound("its structure follows every rule", out);
  const std::string file = ShellWord(out.file);
  if (out.findings.empty())
    out.Suggest("kvtool weights inspect " + file + " --stats",
                "shows blocks, and ranges of their values");
  out.Suggest("kvtool weights verify " + file, "checks whether the two engines' loaders accept it");
  return true;
}

bool IsTrace(const Source& source, Diagnosis& out) {
  OpenOptions options;
  options.max_bytes = out.max_bytes;
  const AttentionTrace trace =
      source.files.empty() ? OpenTrace(source.path, options) : OpenTrace(source, options);
  const bool has_rows = std::any_of(
      trace.layers.begin(), trace.layers.end(),
      [](const TraceLayer& layer) { return layer.queries || !layer.probabilities.empty(); });
  if (!has_rows && !trace.block_scores) return false;
  out.kind = "trace";
  out.format = trace.format;
  out.what = fmt::format(
      "an attention trace ({}, {}), no cache: {}", Name(trace.level), Printable(trace.format),
      Plural(trace.block_scores ? trace.block_scores->layers : trace.layers.size(), "layer"));
  if (trace.rows > 0)
    out.what += fmt::format(", positions {} to {}", trace.q_start, trace.end_position() - 1);
  IsSound("its headers are valid; the values were not checked", out);
  const std::string file = ShellWord(out.file);
  out.Suggest("kvtool trace inspect " + file, "shows layers, heads and positions");
  out.Suggest(fmt::format("kvtool replay evict CACHE --trace {}{}", file,
                          trace.prompt_tokens ? "" : " --prompt-tokens N"),
              "shows what eviction saves and costs",
              fmt::format("CACHE: the cache of the same run{}",
                          trace.prompt_tokens ? "" : ", N: how many tokens its prompt had"));
  return true;
}

bool IsGear(const Source& source, Diagnosis& out) {
  if (source.is_folder || source.files.size() != 1 || source.total_bytes() > kWholeFileBytes)
    return false;
  const GearLayout layout = ReadGear(source.files[0].data->bytes());
  out.kind = "frame";
  out.format = "gear";
  const bool halves = layout.planes.size() == 2;
  out.what = fmt::format("a bare gear container of MNN: {} words of {} bytes, compressed",
                         Grouped(layout.words), layout.planes.size());
  CodecScratch scratch;
  DecodeGear(halves ? GearKind::kTwoPlanes : GearKind::kFourPlanes, source.files[0].data->bytes(),
             scratch);
  IsSound("every plane decodes", out);
  out.shrinks_text = "it is compressed: " + HumanRatio(layout.raw_bytes(), source.total_bytes());
  const std::string file = ShellWord(out.file);
  out.Suggest("kvtool frame inspect " + file, "shows the byte planes");
  out.Suggest(fmt::format("kvtool frame decode --dtype {} {} -o {}", halves ? "f16" : "f32", file,
                          ShellWord(FreeName(out.file + ".raw"))),
              "restores the values as they were");
  return true;
}

// Guesses the type of numbers in a file without a header, from the entropies of the bytes of a
// value.
std::string Numbers(ByteSpan bytes) {
  const ByteSpan some = bytes.first(std::min(bytes.size(), kPlanesBytes));
  const auto entropy = [&](size_t width, size_t plane) {
    std::array<uint64_t, 256> histogram{};
    for (size_t i = plane; i < some.size(); i += width)
      ++histogram[std::to_integer<size_t>(some[i])];
    return EntropyBits(histogram);
  };
  constexpr double kApart = 1;
  if (some.size() < 1024) return "";
  if (entropy(1, 0) > 7.9) return "; the bytes look compressed or encrypted";
  const bool pairs = bytes.size() % 2 == 0 && entropy(2, 0) - entropy(2, 1) > kApart;
  const bool fours = bytes.size() % 4 == 0 && entropy(4, 2) - entropy(4, 3) > kApart &&
                     entropy(4, 0) - entropy(4, 3) > kApart;
  if (fours && entropy(4, 2) - entropy(4, 1) < -kApart)
    return "; the bytes look like 32-bit floats";
  if (pairs) {
    return fmt::format("; the bytes look like {} numbers of 16 bits, such as f16 or bf16",
                       Grouped(bytes.size() / 2));
  }
  return fours ? "; the bytes look like 32-bit floats" : "";
}

// Returns the format that the file seems to have, if it were intact.
std::string GuessFormat(const Source& source) {
  try {
    return std::string(DetectFormat(source, {}).id);
  } catch (const Error&) {
    return {};
  }
}

std::string DescribeContent(const Source& source) {
  if (source.is_folder)
    return fmt::format("a folder of {} files, {}", source.files.size(),
                       HumanBytes(source.total_bytes()));
  const ByteSpan bytes = source.files.at(0).data->bytes();
  if (bytes.empty()) return "an empty file";
  const std::string size = HumanBytes(bytes.size());
  if (IsText(ReadHead(source))) return "a text file, " + size;
  return fmt::format("a file of {}{}", size, Numbers(bytes));
}

// Suggests the flags that the hint of the failure names, and --order for a folder of pages.
void SuggestFlags(const Source& source, const Error& error, const std::string& file,
                  Diagnosis& out) {
  const bool are_pages = source.is_folder && !source.files.empty() &&
                         std::ranges::all_of(source.files, [](const SourceFile& one) {
                           return one.name.ends_with(".kvf");
                         });
  if (are_pages)
    out.Suggest("kvtool inspect " + file + " --order '*.kvf'", "joins its pages by their names");
  if (error.hint().find("--layout") != error.hint().npos) {
    out.Suggest("kvtool inspect " + file + " --layout AXES", "reads it by these axes",
                "AXES: " + Printable(error.hint()));
  }
  if (error.hint().find("--k-pattern") != error.hint().npos) {
    out.Suggest("kvtool inspect " + file + " --k-pattern K --v-pattern V", "reads these tensors",
                "K, V: their names, {i} for the number of the layer");
  }
}

// Describes an archive or a frame that may be intact but needs another cache or a profile.
void DiagnoseIncomplete(const Error& error, Diagnosis& out) {
  const bool is_frame = out.what.empty();
  const bool is_profile = error.finding() == Finding::kProfileMissing;
  out.kind = is_frame ? "snapshot" : "archive";
  out.what = fmt::format("{}, coded {}", is_frame ? "a frame of libkvtool" : out.what,
                         out.needs_transform ? "with a transform"
                         : is_profile        ? "with a profile"
                                             : "against another cache");
  out.sound_text = Printable(error.message());
  out.Suggest(fmt::format("kvtool verify {} {}", ShellWord(out.file),
                          out.needs_transform ? "--transform TRANSFORM"
                          : is_profile        ? "--profile PROFILE"
                                              : "--base CACHE"),
              "checks whether the file is whole",
              out.needs_transform ? "TRANSFORM: the .kvx that it needs"
              : is_profile        ? "PROFILE: the .kvp that it needs"
                                  : "CACHE: the cache that it needs, by its name here");
  out.Suggest("kvtool explain " + FindingId(error.finding()), "explains what is missing");
}

// Suggests how to read the bytes all the same, and what else to do with them.
void SuggestSteps(const Source& source, const Error& error, Diagnosis& out) {
  const bool known = error.finding() != Finding::kUnknownFormat;
  const std::string file = ShellWord(out.file);
  if (known)
    out.Suggest("kvtool explain " + FindingId(error.finding()), "explains the fault and the fix");
  for (const SourceFile& one : source.files) {
    const raw::Preset* preset = raw::PresetForName(one.name);
    if (preset == nullptr || known) continue;
    out.Suggest(fmt::format("kvtool inspect {} --raw {}:{}", file, preset->name, preset->needs),
                fmt::format("by its name it may be of {}", preset->engine),
                "the sizes after each '='");
    break;
  }
  SuggestFlags(source, error, file, out);
  if (source.is_folder && !source.files.empty())
    out.Suggest("kvtool doctor -r " + file, "tells what each file is");
  if (!known && source.total_bytes() > 0) {
    out.Suggest(fmt::format("kvtool inspect {} --raw DTYPE:ORDER:SIZES", file),
                "reads plain arrays without a header",
                "type, axes and sizes, such as f16:2LTHD:2,32,?,8,128");
  }
  if (source.total_bytes() > 0) {
    out.Suggest(fmt::format("kvtool compress {} --from opaque -o {}", file,
                            ShellWord(FreeName(out.file + ".kvz"))),
                "archives the bytes as they are");
  }
  out.Suggest("kvtool formats", "lists what is read, and what is not");
}

}  // namespace

bool DiagnoseOther(const Source& source, Diagnosis& out) {
  const Diagnosis before = out;
  for (const auto is_one :
       {IsModel, IsStore, IsLearnt, IsDocument, IsSuite, IsLog, IsWeights, IsTrace, IsGear}) {
    try {
      if (source.files.empty() && is_one != IsTrace) continue;
      if (is_one(source, out)) return true;
    } catch (const Error&) {
    }
    out = before;
  }
  return false;
}

void DiagnoseUnknown(const Source& source, const Error& error, Diagnosis& out) {
  if (error.finding() == Finding::kReferenceMissing || error.finding() == Finding::kProfileMissing)
    return DiagnoseIncomplete(error, out);
  const bool known = error.finding() != Finding::kUnknownFormat;
  out.kind = error.code() == ErrorCode::kUnsupported ? "foreign" : known ? "broken" : "unknown";
  out.sound_text = "";
  out.findings.clear();
  const std::string message = Printable(error.message());
  if (error.code() == ErrorCode::kUnsupported) {
    out.what = fmt::format("{}; {}{}{}", DescribeContent(source), message,
                           error.hint().empty() ? "" : "; instead: ", Printable(error.hint()));
  } else {
    if (known) out.format = GuessFormat(source);
    out.what = !known ? fmt::format("not known: {}", DescribeContent(source))
               : out.format.empty()
                   ? DescribeContent(source)
                   : fmt::format("{} by its first bytes ({}), but it cannot be read", out.format,
                                 HumanBytes(source.total_bytes()));
    if (known || source.total_bytes() == 0) {
      out.sound_text = fmt::format("{} [{}]", message, FindingId(error.finding()));
      // A limit only tells how far the file was read, not that something beyond is wrong.
      const bool is_limit = error.finding() == Finding::kLimit;
      if (is_limit) out.sound_text = "not checked: " + out.sound_text;
      if (!is_limit) out.sound = Diagnosis::Sound::kNo;
    }
  }
  SuggestSteps(source, error, out);
}

}  // namespace kv
