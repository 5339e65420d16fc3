// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Diagnoses files of known kinds: caches, archives, traces, plans, weights and frames, with the
// commands to run next.
#include "apps/kvtool/doctor/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "apps/kvtool/inputs/run_input.h"
#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "formats/run/run.h"
#include "formats/torch/torch.h"
#include "formats/trace/trace.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/remote/url.h"
#include "lib/study/statistics/checkup.h"

namespace kv {
namespace {

// Returns true for sources that are tried as a trace first: a trace of arrays may have K and V,
// too, and as pickles, caches and attentions look alike.
bool AskFirstForTrace(const Source& source) {
  return !source.files.empty() && !LooksLikeTorch(source);
}

void Look(const std::string& path, std::optional<uint64_t> most, ThreadPool& pool, Diagnosis& out) {
  if (OpenRun(path)) return DiagnoseRun(path, pool, out);
  const bool is_there = path == "-" || std::filesystem::exists(path);
  if (!is_there) {
    Source stem;
    stem.path = path;
    if (DiagnoseOther(stem, out)) return;
  }
  const Source source = Source::Open(path, most);
  out.bytes = source.total_bytes();
  try {
    if (ProbeKvz(source) != Confidence::kNo) return DiagnoseArchive(source, pool, out);
    if (AskFirstForTrace(source) && DiagnoseOther(source, out)) return;
    DiagnoseSnapshot(source, pool, out);
  } catch (Error& error) {
    error.File(path);
    if (DiagnoseOther(source, out)) return;
    out.Fail(error);
    DiagnoseUnknown(source, error, out);
  }
}

bool IsStream(const std::string& path) {
  std::error_code failed;
  return path == "-" || remote::IsUrl(path) || std::filesystem::is_fifo(path, failed);
}

constexpr size_t kMostNamed = 4;

template <typename T, typename F>
std::string ListFew(const std::vector<T>& all, F&& name) {
  std::string text;
  for (size_t i = 0; i < std::min(all.size(), kMostNamed); ++i) {
    text += (i == 0 ? "" : ", ") + name(all[i]);
  }
  if (all.size() > kMostNamed) text += fmt::format(" and {} more", all.size() - kMostNamed);
  return text;
}

std::string PlaceName(const CheckupPlace& place) {
  return fmt::format("layer {} {}", place.layer, place.is_value ? "V" : "K");
}

std::string GroupedPlural(uint64_t count, std::string_view word) {
  return fmt::format("{} {}{}", Grouped(count), word, count == 1 ? "" : "s");
}

std::string ListTypes(const Snapshot& snapshot, bool is_value) {
  std::set<std::string_view> types;
  for (const LayerKv& layer : snapshot.layers) {
    if (is_value ? layer.v.has_value() : layer.has_k())
      types.insert(Name(is_value ? layer.v->dtype : layer.k.dtype));
  }
  if (types.empty()) return is_value ? "no V" : "no K";
  std::string text = is_value ? "V " : "K ";
  for (const std::string_view type : types) {
    text += fmt::format("{}{}", text.size() > 2 ? "/" : "", type);
  }
  return text;
}

std::string Described(const Snapshot& snapshot) {
  uint64_t tokens = 0;
  for (const LayerKv& layer : snapshot.layers) tokens = std::max(tokens, layer.k.tokens());
  std::string text = "a KV cache";
  if (!snapshot.engine.empty()) text += " of " + Printable(snapshot.engine);
  text += " (" + snapshot.format;
  if (!snapshot.format_version.empty()) text += ", " + Printable(snapshot.format_version);
  text += fmt::format("): {}, {}", GroupedPlural(snapshot.layers.size(), "layer"),
                      GroupedPlural(tokens, "token"));
  const uint64_t rows = BatchRows(snapshot);
  if (rows > 1) text += fmt::format(" in {} batch rows", rows);
  if (snapshot.heads_known() && !snapshot.layers.empty()) {
    const KvTensor& k = snapshot.layers.front().k;
    text += fmt::format(", {} of {}", GroupedPlural(k.heads, "kv head"), k.head_dim);
  }
  return text + fmt::format(", {}, {}, {}", ListTypes(snapshot, false), ListTypes(snapshot, true),
                            HumanBytes(snapshot.kv_bytes()));
}

bool LacksBytes(const Snapshot& snapshot) {
  const auto lacks = [](const KvTensor& tensor) {
    return tensor.bytes() > 0 &&
           std::any_of(tensor.pieces.begin(), tensor.pieces.end(),
                       [](const StridedPiece& piece) { return piece.data == nullptr; });
  };
  return std::any_of(snapshot.layers.begin(), snapshot.layers.end(), [&](const LayerKv& layer) {
    return lacks(layer.k) || (layer.v && lacks(*layer.v));
  });
}

void FindIn(const Checkup& checkup, Diagnosis& out) {
  if (checkup.nans + checkup.infinities > 0) {
    out.Find(fmt::format("{} NaN and {} infinite among {} values, in {}", Grouped(checkup.nans),
                         Grouped(checkup.infinities), Grouped(checkup.values),
                         ListFew(checkup.not_finite, PlaceName)));
  }
  const std::string_view seen = checkup.whole() ? "" : " in every layer that was checked";
  if (!checkup.zeros.empty())
    out.Find(fmt::format("only zeros{}: {}", seen, ListFew(checkup.zeros, PlaceName)));
  if (!checkup.same_keys.empty()) {
    const auto pair = [](const std::pair<uint32_t, uint32_t>& layers) {
      return fmt::format("{} and {}", layers.first, layers.second);
    };
    out.Find(fmt::format("K is the same{} in layers {}", seen, ListFew(checkup.same_keys, pair)));
  }
}

// Returns which part of the values was read, if not all.
std::string Reach(const Checkup& checkup) {
  return fmt::format("{} of {}, spread over {} of {}", HumanBytes(checkup.seen_bytes),
                     HumanBytes(checkup.bytes), checkup.seen_layers,
                     GroupedPlural(checkup.layers, "layer"));
}

void Judge(const Checkup& checkup, bool is_compressed, Diagnosis& out) {
  FindIn(checkup, out);
  if (out.findings.empty() && checkup.seen_bytes > 0) {
    out.sound = Diagnosis::Sound::kYes;
    out.sound_text =
        checkup.whole()
            ? fmt::format("all {} values are finite; no layer is empty or duplicated",
                          Grouped(checkup.values))
            : fmt::format(
                  "as far as checked ({}): {} values, all finite; no layer is empty or duplicated",
                  Reach(checkup), Grouped(checkup.values));
  }
  if (is_compressed || checkup.seen_bytes == 0) return;
  out.ratio = checkup.ratio();
  out.judged_bytes = checkup.seen_bytes;
  out.judged_of_bytes = checkup.bytes;
  out.shrinks_text =
      fmt::format("{} to about {:.0f} % ({:.2f}x) at level default, judged by {} of {}",
                  *out.ratio > 1.01 ? "yes:" : "hardly:", 100 / *out.ratio, *out.ratio,
                  HumanBytes(checkup.seen_bytes), HumanBytes(checkup.bytes));
}

// Opens a snapshot within the cost of a quick check: compressed data is unpacked only if it is
// small.
Snapshot OpenForDoctor(const Source& source, Diagnosis& out) {
  OpenOptions options;
  options.metadata_only = true;
  options.any_batch = true;
  options.max_bytes = out.max_bytes;
  Snapshot snapshot = OpenSnapshot(source, options);
  const bool small =
      source.total_bytes() <= kWholeFileBytes && snapshot.kv_bytes() <= kWholeFileBytes;
  if (LacksBytes(snapshot)) {
    if (!small) {
      out.sound_text = "not checked: the values would have to be unpacked first";
      return snapshot;
    }
    options.metadata_only = false;
    options.max_bytes = std::min(4 * kWholeFileBytes, out.max_bytes);
    snapshot = OpenSnapshot(source, options);
  }
  if (small) snapshot.CheckContent();
  return snapshot;
}

// Suggests a replay with the trace beside the cache. Returns false if no trace can be read.
bool SuggestReplay(std::string command, Diagnosis& out) {
  const std::string trace = TraceBeside(out.file);
  if (trace.empty()) return false;
  try {
    const bool knows_prompt = OpenTrace(trace, {}).prompt_tokens.has_value();
    command += ShellWord(trace);
    if (!knows_prompt) command += " --prompt-tokens N";
    out.Suggest(std::move(command), "shows what eviction saves and costs, from the trace beside it",
                knows_prompt ? "" : "N: how many tokens the prompt had");
    return true;
  } catch (const Error&) {
    return false;  // to see the reason, run doctor on the trace itself
  }
}

void SuggestForSnapshot(const Snapshot& snapshot, Diagnosis& out) {
  const std::string file = ShellWord(out.file);
  const std::string archive = ShellWord(out.file + ".kvz");
  if (!out.findings.empty())
    out.Suggest("kvtool inspect " + file + " --stats", "counts each layer's NaNs and zeros");
  std::error_code ignored;
  if (HasTrait(snapshot.format, kIsCompressed)) {
    out.Suggest("kvtool verify " + file, "checks the whole file again, whatever its size");
  } else if (std::filesystem::exists(out.file + ".kvz", ignored)) {
    out.Suggest("kvtool verify " + archive + " --against " + file,
                "checks whether the archive beside it restores this file");
  } else {
    out.Suggest("kvtool compress " + file + " -o " + archive,
                "makes an archive, and checks it byte for byte");
  }
  if (out.findings.empty())
    out.Suggest("kvtool inspect " + file, "shows everything that the file says of itself");
  const std::string batch = BatchRows(snapshot) > 1 ? " --batch 0" : "";
  const std::string portable = FreeName(out.file + ".safetensors");
  const bool heads = snapshot.heads_known();
  out.Suggest(fmt::format("kvtool convert {}{}{} --to safetensors -o {}", file, batch,
                          heads ? "" : " --kv-heads N", ShellWord(portable)),
              "writes the cache in a format that every framework reads",
              heads ? "" : "N: the model's kv heads, or give --model FILE");
  if (!SuggestReplay(fmt::format("kvtool replay evict {}{} --trace ", file, batch), out) && heads) {
    out.Suggest(
        fmt::format("kvtool replay evict {}{} --trace TRACE --prompt-tokens N", file, batch),
        "shows what eviction saves and costs",
        "TRACE: the attention of the same run, N: how many tokens its prompt had");
  }
}

void CheckArchive(const Archive& archive, uint64_t bytes, ThreadPool& pool, Diagnosis& out) {
  std::vector<Damage> damage = archive.damage();
  const bool small = bytes <= kWholeFileBytes && archive.source_bytes() <= 4 * kWholeFileBytes;
  if (small) {
    RequireReferences(archive);
    NoTarget nowhere;
    RestoreOptions options;
    options.keep_going = true;
    const RestoreReport report = Restore(archive, options, pool, nowhere);
    damage = report.damage;
    if (report.lost_bytes > 0) {
      out.Find(fmt::format("damaged: {} of {} bytes cannot be restored", Grouped(report.lost_bytes),
                           Grouped(report.bytes)));
    }
  }
  for (size_t i = 0; i < std::min(damage.size(), kMostNamed); ++i) {
    out.Find(fmt::format("{}: {} [{}]", damage[i].Place(), damage[i].text,
                         FindingId(damage[i].finding)));
  }
  if (!out.findings.empty()) return;
  out.sound = Diagnosis::Sound::kYes;
  out.sound_text =
      small
          ? fmt::format("every chunk decoded, the {} restored as it was: {} bytes",
                        out.needs_transform ? "approximation" : "source",
                        Grouped(archive.source_bytes()))
          : "as far as checked: header, index and tables; there are too many chunks to decode here";
}

}  // namespace

void Diagnosis::Find(std::string finding) {
  findings.push_back(std::move(finding));
  sound = Sound::kNo;
  status = Worse(status, kVerdict);
}

void Diagnosis::Fail(const Error& why) {
  error = why;
  status = ExitStatusFor(why.code());
}

Diagnosis Diagnose(const std::string& path, std::optional<uint64_t> most, ThreadPool& pool) {
  Diagnosis out;
  out.file = path;
  out.max_bytes = most.value_or(kMostUnpacked);
  try {
    Look(path, most, pool, out);
    if (path == "-") out.next.clear();  // a stream cannot be read twice
  } catch (Error& error) {
    out.Fail(error.File(path));
    std::error_code ignored;
    const bool is_there = path == "-" || std::filesystem::exists(path, ignored);
    out.kind = is_there ? "unknown" : "missing";
    out.what =
        is_there ? "not known: " + Printable(error.message()) : "no file or folder has this name";
    if (is_there) return out;
    std::filesystem::path folder = std::filesystem::path(path).parent_path();
    while (!folder.empty() && !std::filesystem::exists(folder, ignored) &&
           folder != folder.parent_path()) {
      folder = folder.parent_path();
    }
    out.Suggest("ls " + ShellWord(folder.empty() ? "." : folder.string()), "lists the folder");
  }
  return out;
}

std::string ShellWord(const std::string& path) {
  const std::string safe = path.starts_with('-') && path != "-" ? "./" + path : path;
  if (Printable(safe) == safe) return ShellQuoted(safe);
  // The console would escape such a name, so it is quoted for a shell.
  std::string quoted = "$'";
  for (const char c : safe) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      if (c == '\'' || c == '\\') quoted += '\\';
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string Grouped(uint64_t number) {
  std::string digits = std::to_string(number);
  for (size_t i = digits.size(); i > 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

std::string FreeName(const std::string& path) {
  std::string base = path;
  while (base.size() > 1 && base.ends_with('/')) base.pop_back();
  std::string name = base;
  std::error_code ignored;
  for (int i = 2; std::filesystem::exists(name, ignored); ++i) {
    const std::filesystem::path whole(base);
    const std::string extension = whole.extension().string();
    name = base.substr(0, base.size() - extension.size()) + fmt::format("-{}", i) + extension;
  }
  return name;
}

void DiagnoseSnapshot(const Source& source, ThreadPool& pool, Diagnosis& out) {
  const Snapshot snapshot = OpenForDoctor(source, out);
  out.kind = "snapshot";
  out.format = snapshot.format;
  out.what = Described(snapshot);
  if (snapshot.kv_bytes() == 0) out.Find("it holds no values");
  const bool is_compressed = HasTrait(snapshot.format, kIsCompressed);
  if (out.sound_text.empty()) Judge(CheckUp(snapshot, Effort::kDefault, pool), is_compressed, out);
  if (is_compressed)
    out.shrinks_text =
        "it is compressed: " + HumanRatio(snapshot.unpacked_bytes, source.total_bytes());
  SuggestForSnapshot(snapshot, out);
}

void DiagnoseArchive(const Source& source, ThreadPool& pool, Diagnosis& out) {
  Archive archive = Archive::Open(source.files.front().data);
  OpenOptions options;
  options.open = OpenSnapshot;
  options.max_bytes = out.max_bytes;
  FindReferences(archive, out.file, options);
  out.kind = "archive";
  out.format = "kvz";
  const uint64_t bytes = source.total_bytes(), restored = archive.source_bytes();
  out.what = fmt::format("an archive of kvtool: {} of {}", HumanBytes(restored),
                         archive.description() ? Described(*archive.description())
                                               : "a file that is not read as a cache");
  out.needs_transform = archive.approximation().has_value();
  if (out.needs_transform) out.what += "; " + DescribeLoss(*archive.approximation());
  CheckArchive(archive, bytes, pool, out);
  if (out.findings.empty()) out.shrinks_text = "it is an archive: " + HumanRatio(restored, bytes);
  if (out.findings.empty() && archive.description() && bytes <= kWholeFileBytes &&
      restored <= kWholeFileBytes) {
    options.any_batch = true;
    const std::string whole = out.sound_text;
    Judge(CheckUp(OpenSnapshot(source, options), Effort::kFast, pool), true, out);
    if (out.findings.empty()) out.sound_text = whole + "; " + out.sound_text;
  }
  const std::string file = ShellWord(out.file);
  const bool named = out.file.ends_with(".kvz");
  const std::string to =
      ShellWord(FreeName(named ? out.file.substr(0, out.file.size() - 4) : out.file + ".restored"));
  const bool damaged = !out.findings.empty();
  out.Suggest("kvtool verify " + file,
              damaged ? "shows what is lost" : "checks the whole file again, whatever its size");
  out.Suggest(fmt::format("kvtool decompress {}{} -o {}", file, damaged ? " --keep-going" : "", to),
              damaged               ? "what can be restored, with zeros for the rest"
              : out.needs_transform ? "the approximation; the original is not in it"
                                    : "restores the original, byte for byte");
  if (archive.description() && !damaged) out.Suggest("kvtool inspect " + file, "shows the cache");
}

void DiagnoseRun(const std::string& path, ThreadPool& pool, Diagnosis& out) {
  SnapshotOptions told;
  std::string snapshot_path = path;
  const std::optional<RecordedRun> run = TakeRun(snapshot_path, told);
  const Source source = Source::Open(snapshot_path, out.max_bytes);
  try {
    DiagnoseSnapshot(source, pool, out);
  } catch (Error& error) {
    out.Fail(error.File(snapshot_path));
    DiagnoseUnknown(source, error, out);
  }
  out.kind = "run";
  std::string of = run->engine.empty() ? "" : " of " + Printable(run->engine);
  if (!run->model.empty()) of += fmt::format(" with {}", Printable(run->model));
  out.what = fmt::format("a recorded run{}: {}, {} of the prompt; {}; snapshot: {}", of,
                         GroupedPlural(run->tokens, "token"), Grouped(run->prompt_tokens),
                         run->trace.empty() ? "no trace" : "with a trace", out.what);
  out.bytes = 0;
  if (out.error) {
    out.next = {
        {"kvtool explain " + FindingId(out.error->finding()), "explains the fault and the fix", ""},
        {"kvtool doctor " + ShellWord(snapshot_path), "its snapshot alone", ""}};
    return;
  }
  const std::string folder = ShellWord(path);
  std::vector<Diagnosis::Step> steps;
  if (!out.findings.empty())
    steps.push_back(
        {"kvtool inspect " + folder + " --stats", "counts each layer's NaNs and zeros", ""});
  if (!run->trace.empty()) {
    steps.push_back({"kvtool replay evict " + folder + " --policy streaming,h2o --budget 0.5",
                     "what evicting half of it would cost", ""});
    steps.push_back({"kvtool advise " + folder + " --min-ratio 2",
                     "which tokens to evict with the least loss", ""});
  }
  steps.push_back({"kvtool compress " + folder + " -o " + ShellWord(FreeName(run->folder + ".kvz")),
                   "makes an archive of its snapshot, and checks it byte for byte", ""});
  steps.push_back({"kvtool inspect " + folder, "everything that the run says of itself", ""});
  out.next = std::move(steps);
}

bool IsStoreFolder(const std::filesystem::path& folder) {
  std::error_code failed;
  return std::filesystem::is_regular_file(
      std::filesystem::symlink_status(folder / "kvtool-store", failed));
}

const OtherKind* FindOtherKind(const std::string& path) {
  static const std::vector<OtherKind> kinds = {
      {"trace", {"trace", "inspect"}, {}},
      {"plan", {"plan", "check"}, {"plan", "check"}},
      {"weights", {"weights", "inspect"}, {"weights", "verify"}},
      // A file counts as a frame only if every plane could be decoded.
      {"frame", {"frame", "inspect"}, {"frame", "inspect"}},
      {"store", {"store", "stats"}, {"store", "verify"}},
      {"profile", {}, {"doctor"}},
      {"transform", {}, {"doctor"}},
  };
  if (IsStream(path)) return nullptr;
  Diagnosis found;
  found.file = path;
  std::error_code failed;
  try {
    Source source;
    source.path = path;
    if (IsStoreFolder(path)) {
      found.kind = "store";
    } else {
      if (std::filesystem::exists(path, failed)) source = Source::Open(path);
      DiagnoseOther(source, found);
    }
  } catch (const Error&) {
    return nullptr;
  }
  const auto kind =
      std::ranges::find_if(kinds, [&](const OtherKind& one) { return one.kind == found.kind; });
  return kind == kinds.end() ? nullptr : &*kind;
}

std::string ReaderInstead(const std::string& path) {
  if (IsStream(path)) return {};
  const std::string file = ShellWord(path);
  if (const OtherKind* other = FindOtherKind(path)) {
    const std::string_view article = other->kind == "weights" ? "a file of " : "a ";
    return fmt::format("it is {}{}: 'kvtool inspect {}' shows it", article, other->kind, file);
  }
  try {
    const Source source = Source::Open(path);
    if (ProbeKvz(source) != Confidence::kNo) return {};
    return fmt::format(
        "it is a cache ({}): 'kvtool compress {}' makes an archive of it, which 'kvtool verify "
        "ARCHIVE --against {}' compares with it",
        DetectFormat(source, {}).id, file, file);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace kv
