// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool corpus`: makes manifests of many inputs, and checks them.
#include <fmt/format.h>

#include <filesystem>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/inputs/corpus_entries.h"
#include "formats/registry.h"
#include "lib/core/base/parallel.h"
#include "lib/core/base/utf8.h"
#include "lib/corpus/corpus.h"

namespace kv {
namespace {

// Returns the fields of an input in a manifest, except its content.
nlohmann::ordered_json DescribeMember(const corpus::Member& member, const std::string& path,
                                      uint64_t max_bytes) {
  nlohmann::ordered_json line = {
      {"name", member.name}, {"bytes", member.bytes}, {"xxh3", member.xxh3}, {"kind", "snapshot"},
      {"format", nullptr},   {"engine", nullptr},     {"model", nullptr},    {"layers", nullptr},
      {"kv_heads", nullptr}, {"head_dim", nullptr},   {"k_dtype", nullptr},  {"v_dtype", nullptr},
      {"tokens", nullptr},   {"problem", nullptr}};
  const auto set = [&](const char* key, const auto& value, bool is_known) {
    if (is_known) line[key] = value;
  };
  try {
    std::string snapshot_path = path;
    SnapshotOptions reading;
    const std::optional<RecordedRun> run = TakeRun(snapshot_path, reading);
    OpenOptions options = reading.Resolve();
    options.metadata_only = options.any_batch = true;
    options.max_bytes = max_bytes;
    const Snapshot snapshot = OpenSnapshot(Source::Open(snapshot_path), options);
    line["kind"] = run ? "run" : HasTrait(snapshot.format, kIsArchive) ? "archive" : "snapshot";
    line["format"] = snapshot.format;
    set("engine", run && !run->engine.empty() ? run->engine : snapshot.engine,
        !snapshot.engine.empty() || (run && !run->engine.empty()));
    set("model", run && !run->model.empty() ? run->model : snapshot.model,
        !snapshot.model.empty() || (run && !run->model.empty()));
    line["layers"] = snapshot.layers.size();
    if (snapshot.layers.empty()) return line;
    const LayerKv& first = snapshot.layers.front();
    set("kv_heads", first.k.heads, snapshot.heads_known());
    set("head_dim", first.k.head_dim, snapshot.heads_known());
    line["k_dtype"] = Name(first.k.dtype);
    if (first.v) line["v_dtype"] = Name(first.v->dtype);
    line["tokens"] = first.k.tokens();
  } catch (const Error& error) {
    line["problem"] = error.message();
  }
  return line;
}

// Requires UTF-8, because JSON cannot hold other names.
void RequireText(const std::string& name, const std::string& path) {
  if (!IsUtf8(name)) {
    throw Error(Finding::kBadName, "the name is not UTF-8, which a manifest requires").File(path);
  }
}

// The result of `corpus check`; its document has these fields.
struct CorpusVerdict {
  struct Change {
    std::string name, text;
  };
  std::string manifest;
  uint64_t input_bytes = 0, entries = 0;
  std::string hash;
  bool content_read = true;
  std::vector<Change> changed;

  std::string_view verdict() const { return changed.empty() ? "unchanged" : "changed"; }
};

const Fields<CorpusVerdict>& CorpusVerdictFields() {
  using Of = CorpusVerdict;
  using Change = CorpusVerdict::Change;
  static const Fields<Change> corpus_change = {
      {"name", "Name of the input in the corpus", &Change::name},
      {"text", "The difference in words", &Change::text}};
  static const Fields<Of> fields = {
      {"inputs", "The manifest",
       [](const Of& of) {
         return std::vector<SizedFile>{{of.manifest, of.input_bytes}};
       },
       SizedFileFields()},
      {"verdict", "Whether all inputs are unchanged", &Of::verdict, OneOf("unchanged", "changed")},
      {"entries", "Number of inputs in the manifest", &Of::entries},
      {"corpus_xxh3", "Hash of the corpus: of the names, sizes and contents in the manifest",
       &Of::hash, kHashText},
      {"content_read", "Whether contents were compared; otherwise sizes alone were",
       &Of::content_read},
      {"changed", "Inputs that have changed", &Of::changed, corpus_change}};
  return fields;
}

class Corpus : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.RequireVerb();
    make_ = &line.AddVerb("make", "Write the manifest of a folder: a JSON line for each input");
    make_->Add("FOLDER", folder_, "Folder to search, as -r of other commands does").Required();
    make_->Add("-o,--output", output_, "Manifest to write (default: standard output)");
    limit_.Declare(*make_, "Limit on inflated or derived data of each input (default: 64GiB)");
    make_->AddFlag("-f,--force", force_, "Overwrite the manifest");
    check_ = &line.AddVerb("check", "Check that the inputs of a manifest are unchanged");
    check_->Add("MANIFEST", input_, "What 'kvtool corpus make' wrote").Required();
    check_
        ->Add("--corpus-dir", corpus_dir_,
              "Folder of the corpus (default: the one in the manifest, relative to it)")
        .ValueName("FOLDER");
    check_->AddFlag("--quick", quick_, "Compare sizes only, without reading contents");
    report_.Declare(*check_);
  }

  void Files(CommandFiles& files) const override {
    files.Writes(output_, "-o");
    Command::Files(files);
  }

  ExitStatus Run(Context& context) override {
    return make_->parsed() ? Make(context) : Check(context);
  }

 private:
  ExitStatus Make(Context& context) const {
    std::error_code failed;
    if (!std::filesystem::is_directory(folder_, failed)) {
      throw Error(Finding::kOpenFailed, "is not a folder").File(folder_);
    }
    OpenOptions reading;
    if (const auto most = limit_.most()) reading.max_bytes = *most;
    const FolderRules rules{
        reading, [](std::string_view format, bool is_run) { return is_run || !format.empty(); }};
    const FolderSearch search = SearchFolder(rules, folder_, "");
    if (search.entries.empty()) {
      throw Error(Finding::kUnknownFormat, "holds no snapshot, archive or recorded run")
          .File(folder_);
    }
    CommandFiles files;
    for (const CorpusEntry& entry : search.entries) {
      RequireText(entry.name, entry.path);
      files.Reads(entry.path);
    }
    files.Writes(output_, "-o");
    files.Check();
    corpus::Manifest manifest;
    manifest.folder = FolderFromManifest();
    RequireText(manifest.folder, folder_);
    manifest.members.resize(search.entries.size());
    manifest.lines.resize(search.entries.size());
    ThreadPool pool(context.global.thread_count());
    pool.ParallelFor(search.entries.size(), [&](uint64_t i) {
      const CorpusEntry& entry = search.entries[i];
      // If the input is the folder itself, its relative name is empty: the folder's is used.
      const std::string name =
          entry.name.empty() ? CorpusName(std::filesystem::absolute(folder_)) : entry.name;
      manifest.members[i] = {name, BytesOf(entry.path), ContentHash(entry.path)};
      manifest.lines[i] = DescribeMember(manifest.members[i], entry.path, reading.max_bytes);
    });
    if (search.entries.size() == 1 && search.entries.front().name.empty()) {
      manifest.folder = (std::filesystem::path(manifest.folder) / "..").lexically_normal().string();
    }
    if (manifest.folder.starts_with("..") || manifest.folder.starts_with('/')) {
      context.console.Say("inputs are outside the manifest's folder: commands need --corpus-dir");
    }
    const std::string text = corpus::ManifestText(manifest);
    if (output_.empty() || output_ == "-") {
      context.console.Product(text);
    } else {
      WriteText(output_, text, RulesFor(force_));
    }
    uint64_t bytes = 0;
    for (const corpus::Member& member : manifest.members) bytes += member.bytes;
    context.console.Say(fmt::format("{} inputs, {}, corpus {}; {} files left out",
                                    manifest.members.size(), HumanBytes(bytes),
                                    corpus::CorpusHash(manifest.members), search.left_out.size()));
    return kDone;
  }

  // Returns the folder relative to the manifest, so that both can be moved together.
  std::string FolderFromManifest() const {
    namespace fs = std::filesystem;
    const bool to_stdout = output_.empty() || output_ == "-";
    const fs::path beside = to_stdout ? fs::current_path() : fs::absolute(output_).parent_path();
    std::error_code failed;
    const fs::path from = fs::weakly_canonical(beside, failed);
    const fs::path to = fs::canonical(folder_, failed);
    return failed ? folder_ : to.lexically_relative(from).generic_string();
  }

  ExitStatus Check(Context& context) const {
    const OpenedManifest opened = OpenManifest(input_, corpus_dir_);
    const std::vector<corpus::Member>& members = opened.manifest.members;
    const std::filesystem::path folder = opened.folder;
    std::vector<std::string> problems(members.size());
    ThreadPool pool(context.global.thread_count());
    pool.ParallelFor(problems.size(), [&](uint64_t i) {
      problems[i] = FindProblem(members[i], (folder / members[i].name).string());
    });
    CorpusVerdict result = {
        input_, opened.bytes, members.size(), corpus::CorpusHash(members), !quick_, {}};
    for (size_t i = 0; i < problems.size(); ++i) {
      if (!problems[i].empty()) result.changed.push_back({members[i].name, problems[i]});
    }
    const bool good = result.changed.empty();
    if (!report_.json) {
      for (const CorpusVerdict::Change& change : result.changed) {
        context.console.Line(fmt::format("{}: {}", Printable(change.name), change.text));
      }
      context.console.Line(fmt::format("{}: {}: {} of {} inputs are unchanged", Printable(input_),
                                       context.console.Verdict(good, result.verdict()),
                                       result.entries - result.changed.size(), result.entries));
    }
    report_.Emit(context.console, "corpus-check", CorpusVerdictFields, result);
    return good ? kDone : kVerdict;
  }

  std::string FindProblem(const corpus::Member& member, const std::string& path) const {
    std::error_code failed;
    if (!std::filesystem::exists(path, failed)) return "is missing";
    const uint64_t bytes = BytesOf(path);
    if (bytes != member.bytes) {
      return fmt::format("has {} bytes, it had {}", bytes, member.bytes);
    }
    if (quick_) return {};
    try {
      const std::string hash = ContentHash(path);
      return hash == member.xxh3 ? std::string()
                                 : fmt::format("its XXH3 is {}, it was {}", hash, member.xxh3);
    } catch (const Error& error) {
      return error.message();
    }
  }

  CommandLine *make_ = nullptr, *check_ = nullptr;
  std::string folder_, output_, corpus_dir_;
  bool force_ = false, quick_ = false;
  SizeLimit limit_;
};

}  // namespace

const FieldTable& CorpusCheckFields() { return CorpusVerdictFields(); }

std::unique_ptr<Command> MakeCorpus() { return std::make_unique<Corpus>(); }

}  // namespace kv
