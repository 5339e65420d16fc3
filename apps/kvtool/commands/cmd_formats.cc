// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "formats/catalogue.h"
#include "formats/foreign.h"

namespace kv {
namespace {

struct Section {
  FormatKind kind;
  std::string_view heading;
};
constexpr Section kSections[] = {
    {FormatKind::kSnapshot, "KV caches (--from and --to take these names)"},
    {FormatKind::kNames,
     "Names known in them: {i} layer, {x} k/key/keys or v/value/values, {01} K is 0 and V is 1 "
     "(others: --k-pattern, --v-pattern)"},
    {FormatKind::kPreset, "Headerless files of engines (--raw NAME:DTYPE:KEY=VALUE,...)"},
    {FormatKind::kTrace, "Attention traces (--trace)"},
    {FormatKind::kWeights, "Compressor weights (kvtool weights)"},
    {FormatKind::kModel, "Models (--model)"},
};

std::string Ability(bool can, bool detected) { return can ? detected ? "yes" : "named" : "-"; }

class ListOfFormats : public Command {
 public:
  void Declare(CommandLine& line) override { report_.Declare(line); }

  void Files(CommandFiles& files) const override { report_.Files(files); }

  ExitStatus Run(Context& context) override {
    if (!report_.json) Print(context.console);
    report_.Emit(context.console, Document(), RulesFor(false));
    return kDone;
  }

 private:
  static void Print(Console& console) {
    for (const Section& section : kSections) {
      const bool names = section.kind == FormatKind::kNames;
      Table table(
          names ? std::vector<std::string>{"name", "whose"}
                : std::vector<std::string>{"name", "reads", "writes", "what it is", "you supply"});
      for (const FormatListing& format : ListFormats()) {
        if (format.kind != section.kind) continue;
        if (names) {
          table.Row({std::string(format.id), std::string(format.summary)});
          continue;
        }
        table.Row({std::string(format.id), Ability(format.reads, format.detected),
                   Ability(format.writes, true), std::string(format.summary),
                   std::string(format.needs)});
      }
      console.Line(console.Bold(section.heading));
      console.Data(table.Text("  "));
      console.Line("");
    }
    console.Line("reads: yes = detected by its bytes, named = only if --from or --raw names it\n");
    console.Line(console.Bold("Not read as caches"));
    for (const ForeignFormat& format : ForeignFormats()) {
      console.Line(fmt::format("  {:<24}{}", format.id, format.what));
      console.Line(fmt::format("  {:<24}{}{}{}", "", format.reason,
                               format.hint.empty() ? "" : "; instead: ", format.hint));
    }
  }

  static nlohmann::ordered_json Document() {
    nlohmann::ordered_json document = ReportHeader("formats");
    document["formats"] = nlohmann::ordered_json::array();
    for (const FormatListing& format : ListFormats()) {
      document["formats"].push_back({{"name", format.id},
                                     {"kind", Name(format.kind)},
                                     {"detected", format.detected},
                                     {"reads", format.reads},
                                     {"writes", format.writes},
                                     {"summary", format.summary},
                                     {"needs", format.needs}});
    }
    document["not_read"] = nlohmann::ordered_json::array();
    for (const ForeignFormat& format : ForeignFormats()) {
      document["not_read"].push_back({{"name", format.id},
                                      {"summary", format.what},
                                      {"reason", format.reason},
                                      {"instead", format.hint},
                                      {"recognised", format.recognise != nullptr}});
    }
    return document;
  }

  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeFormats() { return std::make_unique<ListOfFormats>(); }

}  // namespace kv
