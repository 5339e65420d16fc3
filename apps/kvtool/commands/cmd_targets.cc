// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <zstd.h>

#include <nlohmann/json.hpp>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/line/help.h"
#include "lib/core/base/parallel.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/kernels/targets.h"
#include "lib/remote/url.h"

namespace kv {
namespace {

// The result of a run; its document has these fields.
struct Capabilities {
  struct Codec {
    unsigned id = 0;
    std::string_view name;
  };
  int threads = UsableCpus();
  bool urls = remote::CanOpenUrls();
  std::vector<std::pair<std::string, std::string>> libraries;
  std::vector<SimdTarget> simd = SimdTargets();
  std::vector<Codec> codecs;
  std::vector<std::string> dtypes;
};

Capabilities FindCapabilities() {
  Capabilities found;
  const auto version = [](int major, int minor, int patch) {
    return fmt::format("{}.{}.{}", major, minor, patch);
  };
  found.libraries = {
      {"zstd", ZSTD_versionString()},
      {"fmt", version(FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"nlohmann_json", version(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                NLOHMANN_JSON_VERSION_PATCH)},
      {"CLI11", std::string(ParserVersion())}};
  for (unsigned id = 0; id < 256; ++id) {
    const std::string_view name = Name(static_cast<CodecId>(id));
    if (!name.empty()) found.codecs.push_back({id, name});
  }
  for (const DTypeInfo& info : AllDTypes()) found.dtypes.emplace_back(info.name);
  return found;
}

const Fields<SimdTarget>& SimdTargetFields() {
  static const Fields<SimdTarget> fields = {
      {"name", "Name that --simd takes", &SimdTarget::name, Heading("name")},
      {"supported",
       "Whether this CPU supports the target",
       &SimdTarget::supported,
       {.column = "this CPU",
        .format = [](const Value& value) -> std::string {
          return *value.get_if<bool>() ? "yes" : "no";
        }}},
      {"active", "Whether the kernels use the target", &SimdTarget::active}};
  return fields;
}

std::string YesOrDash(const Value& value) { return *value.get_if<bool>() ? "yes" : "-"; }

const Fields<FormatEntry>& FormatEntryFields() {
  using Entry = FormatEntry;
  static const Fields<Entry> fields = {
      {"name", "Name that --from and --to take", &Entry::id, Heading("name")},
      {"detected", "Whether files are recognised by their content",
       [](const Entry& format) { return format.probe != nullptr; }, Heading("detected", YesOrDash)},
      {"reads", "Whether the format can be read",
       [](const Entry& format) { return format.open != nullptr; }, Heading("reads", YesOrDash)},
      {"writes", "Whether the format can be written",
       [](const Entry& format) { return format.write != nullptr; }, Heading("writes", YesOrDash)},
      {"summary", "What the format is", &Entry::summary, Heading("what it is")},
      {"needs", "What the user must supply beyond the file; empty: nothing", &Entry::needs,
       Heading("you supply")}};
  return fields;
}

const Fields<Capabilities>& CapabilitiesFields() {
  using Codec = Capabilities::Codec;
  static const Fields<Codec> codec_number = {
      {"id", "Number in an archive", &Codec::id, {.least = 0, .most = 255}},
      {"name", "Name of the codec", &Codec::name}};
  static const Fields<Capabilities> fields = {
      NoInputs<Capabilities>(),
      {"threads", "CPUs that this process may use", &Capabilities::threads, AtLeast(1)},
      {"libraries", "Version of each library that the program was built with, by its name",
       [](const Capabilities& of) {
         return std::map<std::string, std::string>(of.libraries.begin(), of.libraries.end());
       }},
      {"urls", "Whether http:// and https:// URLs can be inputs, where libcurl is installed",
       &Capabilities::urls},
      {"simd", "SIMD targets of this build, best first", &Capabilities::simd, SimdTargetFields(),
       CsvRows(Items(1))},
      {"formats", "Formats that the program knows", [](const Capabilities&) { return Formats(); },
       FormatEntryFields(), Items(1)},
      {"codecs", "Codecs of .kvz archives", &Capabilities::codecs, codec_number, Items(1)},
      {"dtypes", "Names of the element types that the program knows", &Capabilities::dtypes}};
  return fields;
}

// Prints what a bug report needs, in one block.
class Targets : public Command {
 public:
  void Declare(CommandLine& line) override { report_.Declare(line); }

  ExitStatus Run(Context& context) override {
    const Capabilities found = FindCapabilities();
    if (!report_.json) Print(context.console, found);
    report_.Emit(context.console, "targets", CapabilitiesFields, found);
    return kDone;
  }

 private:
  static void Print(Console& console, const Capabilities& found) {
    console.Line(VersionLine());
    std::vector<std::string> libraries, codecs;
    for (const auto& [name, version] : found.libraries) libraries.push_back(name + " " + version);
    console.Line(
        fmt::format("libraries: {}; {} usable CPUs; {}", fmt::join(libraries, ", "), found.threads,
                    found.urls ? "reads URLs where libcurl is installed" : "reads no URLs"));
    console.Line("\n" + console.Bold("SIMD targets") +
                 " (force one with --simd NAME or KVTOOL_SIMD)");
    TextTable simd = MakeTextTable(SimdTargetFields(), found.simd);
    simd.head.emplace_back();
    for (size_t i = 0; i < found.simd.size(); ++i) {
      simd.rows[i].emplace_back(found.simd[i].active ? "in use" : "");
    }
    console.Data(Table(simd).Text("  "));
    console.Line("\n" + console.Bold("formats") + " (--from and --to take these names)");
    console.Data(Table(MakeTextTable(FormatEntryFields(), Formats())).Text("  "));
    for (const Capabilities::Codec& codec : found.codecs)
      codecs.push_back(fmt::format("{} {}", codec.id, codec.name));
    console.Line("\n" + console.Bold("codecs") +
                 fmt::format(" (as numbered in .kvz archives)\n  {}", fmt::join(codecs, ", ")));
    console.Line("\n" + console.Bold("dtypes") +
                 fmt::format("\n  {}", fmt::join(found.dtypes, " ")));
  }
};

}  // namespace

const FieldTable& TargetsFields() { return CapabilitiesFields(); }

std::unique_ptr<Command> MakeTargets() { return std::make_unique<Targets>(); }

}  // namespace kv
