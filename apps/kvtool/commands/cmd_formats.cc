// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "formats/registry.h"

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

const Fields<ForeignFormat>& ForeignFormatFields() {
  static const Fields<ForeignFormat> fields = {
      {"name", "Name of the format", &ForeignFormat::id, AtLeast(1)},
      {"summary", "Description of the format in a few words", &ForeignFormat::what},
      {"reason", "Why kvtool does not read the format", &ForeignFormat::reason, AtLeast(1)},
      {"instead", "What to do instead", &ForeignFormat::hint},
      {"recognised", "Whether kvtool recognises files of this format and refuses them by its name",
       [](const ForeignFormat& format) { return format.recognise != nullptr; }}};
  return fields;
}

// The result of a run; its document has these fields.
struct KnownFormats {
  std::vector<FormatListing> formats = ListFormats();
  std::span<const ForeignFormat> not_read = ForeignFormats();
};

const Fields<KnownFormats>& KnownFormatsFields() {
  using Listing = FormatListing;
  static const Fields<Listing> format_listing = {
      {"name", "Name of the format, as --from and --to take it", &Listing::id, AtLeast(1)},
      {"kind",
       "Content: a snapshot, names of files or tensors in one, a preset of options for one, "
       "an attention trace, weights, or a model",
       [](const Listing& format) { return Name(format.kind); },
       OneOf("snapshot", "names", "preset", "trace", "weights", "model")},
      {"detected", "Whether the format is known by its bytes, without --from", &Listing::detected},
      {"reads", "Whether kvtool reads the format", &Listing::reads},
      {"writes", "Whether kvtool writes the format", &Listing::writes},
      {"summary", "Description of the format in a few words", &Listing::summary, AtLeast(1)},
      {"needs", "What the user must supply beyond the file", &Listing::needs}};
  static const Fields<KnownFormats> fields = {
      NoInputs<KnownFormats>(),
      {"formats", "What kvtool reads or writes", &KnownFormats::formats, format_listing,
       CsvRows(Items(1))},
      {"not_read", "Formats that kvtool knows of and does not read", &KnownFormats::not_read,
       ForeignFormatFields()}};
  return fields;
}

class ListOfFormats : public Command {
 public:
  void Declare(CommandLine& line) override { report_.Declare(line); }

  ExitStatus Run(Context& context) override {
    if (!report_.json) Print(context.console);
    report_.Emit(context.console, "formats", KnownFormatsFields, {});
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
};

}  // namespace

const FieldTable& FormatsFields() { return KnownFormatsFields(); }

std::unique_ptr<Command> MakeFormats() { return std::make_unique<ListOfFormats>(); }

}  // namespace kv
