// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/core.h>
#include <zstd.h>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/line/help.h"
#include "lib/core/base/parallel.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/kernels/targets.h"
#include "lib/remote/url.h"

namespace kv {
namespace {

// What a bug report needs, in one block.
class Targets : public Command {
 public:
  void Declare(CommandLine& line) override { report_.Declare(line); }

  void Files(CommandFiles& files) const override { report_.Files(files); }

  ExitStatus Run(Context& context) override {
    nlohmann::ordered_json document = ReportHeader("targets");
    document["threads"] = UsableCpus();
    document["libraries"] = {
        {"zstd", ZSTD_versionString()},
        {"fmt",
         fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
        {"nlohmann_json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                      NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
        {"CLI11", ParserVersion()}};
    document["urls"] = remote::CanOpenUrls();
    document["simd"] = nlohmann::ordered_json::array();
    for (const SimdTarget& target : SimdTargets()) {
      document["simd"].push_back(
          {{"name", target.name}, {"supported", target.supported}, {"active", target.active}});
    }
    document["formats"] = nlohmann::ordered_json::array();
    for (const FormatEntry& format : Formats()) {
      document["formats"].push_back({{"name", format.id},
                                     {"detected", format.probe != nullptr},
                                     {"reads", format.open != nullptr},
                                     {"writes", format.write != nullptr},
                                     {"summary", format.summary},
                                     {"needs", format.needs}});
    }
    document["codecs"] = nlohmann::ordered_json::array();
    for (unsigned id = 0; id < 256; ++id) {
      const std::string_view name = Name(static_cast<CodecId>(id));
      if (!name.empty()) document["codecs"].push_back({{"id", id}, {"name", name}});
    }
    document["dtypes"] = nlohmann::ordered_json::array();
    for (const DTypeInfo& info : AllDTypes()) document["dtypes"].push_back(info.name);
    if (!report_.json) Print(context.console, document);
    report_.Emit(context.console, document, RulesFor(false));
    return kDone;
  }

 private:
  static void Print(Console& console, const nlohmann::ordered_json& document) {
    console.Line(VersionLine());
    std::string libraries;
    for (const auto& [name, version] : document["libraries"].items()) {
      libraries +=
          fmt::format("{}{} {}", libraries.empty() ? "" : ", ", name, version.get<std::string>());
    }
    console.Line(fmt::format(
        "libraries: {}; {} usable CPUs; {}", libraries, document["threads"].get<int>(),
        document["urls"].get<bool>() ? "reads URLs where libcurl is installed" : "reads no URLs"));
    console.Line("\n" + console.Bold("SIMD targets") +
                 " (force one with --simd NAME or KVTOOL_SIMD)");
    Table simd({"name", "this CPU", ""});
    for (const auto& target : document["simd"]) {
      simd.Row(
          {target["name"], target["supported"] ? "yes" : "no", target["active"] ? "in use" : ""});
    }
    console.Data(simd.Text("  "));
    console.Line("\n" + console.Bold("formats") + " (--from and --to take these names)");
    Table formats({"name", "detected", "reads", "writes", "what it is", "you supply"});
    const auto yes = [](const nlohmann::ordered_json& value) {
      return value.get<bool>() ? "yes" : "-";
    };
    for (const auto& format : document["formats"]) {
      formats.Row({format["name"], yes(format["detected"]), yes(format["reads"]),
                   yes(format["writes"]), format["summary"], format["needs"]});
    }
    console.Data(formats.Text("  "));
    std::string codecs;
    for (const auto& codec : document["codecs"]) {
      codecs += fmt::format("{}{} {}", codecs.empty() ? "" : ", ", codec["id"].get<unsigned>(),
                            codec["name"].get<std::string>());
    }
    console.Line("\n" + console.Bold("codecs") + " (as numbered in .kvz archives)\n  " + codecs);
    std::string dtypes;
    for (const auto& name : document["dtypes"])
      dtypes += (dtypes.empty() ? "" : " ") + name.get<std::string>();
    console.Line("\n" + console.Bold("dtypes") + "\n  " + dtypes);
  }

  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeTargets() { return std::make_unique<Targets>(); }

}  // namespace kv
