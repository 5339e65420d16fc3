// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool frame`: encodes and decodes byte planes and gear containers, and shows their layout.
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "formats/kvf/kvf.h"
#include "formats/registry.h"
#include "lib/core/base/dtype.h"
#include "lib/core/codec/planes/gear.h"

namespace kv {
namespace {

GearKind ParseKind(const std::string& word) {
  const std::optional<DType> dtype = ParseDType(word);
  if (dtype == DType::kF16 || dtype == DType::kBF16) return GearKind::kTwoPlanes;
  if (dtype == DType::kF32) return GearKind::kFourPlanes;
  throw Error(Finding::kUsage, "--dtype '{}': expected f16, bf16 or f32", word);
}

// The output -o FILE, -o - or -c, checked before any work is done.
class Output {
 public:
  Output(const OutputOptions& options, const std::string& input, const Console& console) {
    if (options.to_stdout == !options.path.empty()) {
      throw Error(Finding::kUsage, "expected one output: -o FILE, or -c for standard output");
    }
    const std::string path = options.to_stdout ? "-" : options.path;
    if (path != "-") name_ = path;
    if (path == "-" && console.stdout_is_terminal() && !options.force) {
      throw Error(Finding::kUsage, "binary data is not written to a terminal unless -f is given");
    }
    file_ = std::make_unique<AtomicFile>(path, RulesFor(options.force, input));
  }

  void Write(ByteSpan bytes) {
    file_->Write(bytes);
    file_->Commit();
  }
  std::string name() const { return Printable(name_); }

 private:
  std::string name_ = "stdout";
  std::unique_ptr<AtomicFile> file_;
};

// The layout of a container; the document has these fields.
struct FrameLook {
  HashedFile input;
  GearLayout layout;

  bool is_two() const { return layout.planes.size() == CountPlanes(GearKind::kTwoPlanes); }
  Saving saving() const { return {layout.raw_bytes(), input.bytes}; }
};

// Returns a figure of anything that has bytes, such as a plane or a container.
template <typename T, typename Get>
auto RatioIn(Get saving) {
  return [saving](const T& of) { return *std::invoke(saving, of).ratio(); };
}
template <typename T, typename Get>
auto RemovedIn(Get saving) {
  return [saving](const T& of) { return *std::invoke(saving, of).removed_fraction(); };
}

std::string AsOffset(const Value& value) { return fmt::format("{:#x}", *value.get_if<uint64_t>()); }

const Fields<PlaneFrame>& PlaneFields() {
  const auto saving = [](const PlaneFrame& plane) {
    return Saving{plane.raw_bytes, kPlaneHeaderBytes + plane.payload.size()};
  };
  static const Fields<PlaneFrame> fields = {
      {"offset", "Where the plane begins in the container, in bytes", &PlaneFrame::offset,
       Heading("offset", AsOffset)},
      {"predictor",
       "What was subtracted before coding: nothing, the byte before, or the byte before by "
       "exclusive or",
       [](const PlaneFrame& plane) { return Name(static_cast<Predictor>(plane.mode)); },
       {.choices = {"raw", "delta_seq", "xor_seq"}, .column = "predictor"}},
      {"backend",
       "What coded the bytes",
       [](const PlaneFrame& plane) { return Name(static_cast<Backend>(plane.codec)); },
       {.choices = {"rle", "zstd"}, .column = "backend"}},
      {"raw_bytes", "Bytes of the plane before coding", &PlaneFrame::raw_bytes,
       Heading("raw bytes")},
      {"payload_bytes", "Bytes of the plane after coding, without its header",
       [](const PlaneFrame& plane) { return plane.payload.size(); }, Heading("payload bytes")},
      {"ratio", "Bytes of the plane / bytes after coding with its header",
       RatioIn<PlaneFrame>(saving), Heading("ratio", format::AsFactor)},
      {"removed_fraction", "Share of the plane's bytes that coding saves, its header counted",
       RemovedIn<PlaneFrame>(saving)}};
  return fields;
}

const Fields<FrameLook>& FrameLookFields() {
  static const Fields<FrameLook> fields = {
      {"inputs", "The container that was read",
       [](const FrameLook& of) { return std::vector{of.input}; }, HashedFileFields()},
      {"dtypes", "Possible element types of the words; the container does not store the type",
       [](const FrameLook& of) {
         return of.is_two() ? std::vector<std::string>{"f16", "bf16"}
                            : std::vector<std::string>{"f32"};
       },
       Items(1)},
      {"words", "Number of values", [](const FrameLook& of) { return of.layout.words; },
       AtLeast(1)},
      {"raw_bytes", "Bytes of the values before coding",
       [](const FrameLook& of) { return of.layout.raw_bytes(); }},
      {"stored_bytes", "Size of the container in bytes",
       [](const FrameLook& of) { return of.input.bytes; }},
      {"ratio", "raw_bytes / stored_bytes", RatioIn<FrameLook>(&FrameLook::saving)},
      {"removed_fraction", "Share of the raw bytes that coding saves: 1 - stored_bytes / raw_bytes",
       RemovedIn<FrameLook>(&FrameLook::saving)},
      {"planes",
       "The byte planes of the values, in the order of the container",
       [](const FrameLook& of) { return of.layout.planes; },
       PlaneFields(),
       {.items = 2, .most_items = 4, .rows = true}}};
  return fields;
}

class Frame : public Command {
 public:
  void Declare(CommandLine& line) override {
    encode_ = &line.AddVerb("encode", "Compress little-endian values to a bare container");
    DeclareCoding(*encode_);
    encode_->Add("--predictors", predictors_,
                 "Predictors to try: raw,delta_seq,xor_seq (default: all)");
    encode_->Add("--lo-predictors", low_, "Predictors for the low byte plane of 16-bit types");
    encode_->Add("--hi-predictors", high_, "Predictors for the high byte plane");
    encode_->AddFlag("--no-zstd", no_zstd_, "Use RLE only, like an engine built without zstd");
    decode_ = &line.AddVerb("decode", "Restore the values of a bare container");
    DeclareCoding(*decode_);
    inspect_ = &line.AddVerb("inspect", "Show the planes of a bare container");
    inspect_->Add("IN", input_, "Container, '-' for stdin").Required();
    limit_.Declare(*inspect_, "Limit on a stream (default: 64GiB)");
    report_.Declare(*inspect_);
  }

  void Files(CommandFiles& files) const override {
    files.Writes(output_.to_stdout ? "-" : output_.path, "-o");
    Command::Files(files);
  }

  ExitStatus Run(Context& context) override {
    if (!encode_->parsed() && !decode_->parsed() && !inspect_->parsed())
      throw Error(Finding::kUsage, "expected one of encode, decode, inspect");
    try {
      if (encode_->parsed()) Encode(context.console);
      if (decode_->parsed()) Decode(context.console);
      if (inspect_->parsed()) Inspect(context.console);
    } catch (Error& error) {
      if (error.code() == ErrorCode::kInvalidData) error.File(input_);
      throw;
    }
    return kDone;
  }

 private:
  void DeclareCoding(CommandLine& line) {
    line.Add("IN", input_, "File to read, '-' for stdin").Required();
    line.Add("--dtype", dtype_, "Element type of the values: f16, bf16, f32").Required();
    output_.Declare(line, "File to write, '-' for stdout");
    limit_.Declare(line,
                   "Limit on the values that a container holds (default: none), and on a stream "
                   "(default: 64GiB)");
  }

  std::shared_ptr<const FileSource> Open() const {
    return SizeLimit::WithHint([&] { return FileSource::Open(input_, limit_.most()); });
  }

  GearOptions Options(GearKind kind, Console& console) const {
    const bool split = encode_->Given("--lo-predictors") || encode_->Given("--hi-predictors");
    if (split && kind != GearKind::kTwoPlanes) {
      throw Error(Finding::kUsage,
                  "--lo-predictors and --hi-predictors: only 16-bit types have a low and a high "
                  "plane")
          .Hint("for f32, --predictors applies to all four planes");
    }
    GearOptions options;
    options.zstd = !no_zstd_;
    const auto parse = [&](const char* flag, const std::string& list) {
      std::vector<std::string> unknown;
      const PredictorSet set = ParsePredictors(list, &unknown);
      for (const std::string& name : unknown) {
        console.Warn(input_, fmt::format("{}: '{}' is not a predictor (raw, delta_seq, xor_seq) "
                                         "and is left out, as MNN does",
                                         flag, Printable(name)));
      }
      return set;
    };
    if (encode_->Given("--predictors")) options.predictors.fill(parse("--predictors", predictors_));
    if (encode_->Given("--lo-predictors")) options.predictors[0] = parse("--lo-predictors", low_);
    if (encode_->Given("--hi-predictors")) options.predictors[1] = parse("--hi-predictors", high_);
    return options;
  }

  // Warns that two kinds of file are called frames; a reader tells them apart by their bytes.
  void WarnOfName(Console& console) const {
    if (!output_.path.ends_with(".kvf")) return;
    console.Warn(output_.path, "writes a container of MNN, but .kvf is for pages of libkvtool");
  }

  void WarnOfFormat(const std::shared_ptr<const FileSource>& input, Console& console) const {
    Source source;
    source.path = input_;
    source.files.push_back({input_, input});
    for (const FormatEntry& format : Formats()) {
      if (format.probe == nullptr || format.probe(source) != Confidence::kCertain) continue;
      return console.Warn(input_, fmt::format("is a file of format {}: its header is coded as "
                                              "values, too; give the values alone",
                                              format.id));
    }
  }

  void Encode(Console& console) {
    const GearKind kind = ParseKind(dtype_);
    const GearOptions options = Options(kind, console);
    WarnOfName(console);
    Output output(output_, input_, console);
    const auto input = Open();
    WarnOfFormat(input, console);
    CodecScratch scratch;
    Bytes container;
    const PlaneChoices choices = EncodeGear(kind, input->bytes(), options, scratch, container);
    input->RequireUnchanged();
    output.Write(container);
    std::string planes;
    for (const PlaneChoice& choice : choices)
      planes += fmt::format("{} {}+{}", planes.empty() ? ":" : ",", Name(choice.predictor),
                            Name(choice.backend));
    console.Say(fmt::format("{}: {} bytes to {}, {}{}", output.name(), input->size(),
                            container.size(), HumanRatio(input->size(), container.size()), planes));
  }

  void Decode(Console& console) {
    const GearKind kind = ParseKind(dtype_);
    Output output(output_, input_, console);
    const auto input = Open();
    CodecScratch scratch;
    if (!limit_.text.empty()) limit_.Require(Read(input->bytes()).raw_bytes(), input_);
    const Bytes values = DecodeOrExplain(kind, input->bytes(), scratch);
    input->RequireUnchanged();
    output.Write(values);
    console.Say(fmt::format("{}: {} bytes from {}", output.name(), values.size(), input->size()));
  }

  // Decodes a container. It does not record its kind, so an error mentions the other kind if that
  // fits.
  static Bytes DecodeOrExplain(GearKind kind, ByteSpan container, CodecScratch& scratch) {
    try {
      return DecodeGear(kind, container, scratch);
    } catch (Error& error) {
      try {
        const GearLayout other = ReadGear(container);
        if (other.planes.size() != CountPlanes(kind)) {
          error.Hint("it has {} planes: try --dtype {}", other.planes.size(),
                     other.planes.size() == 2 ? "f16" : "f32");
        }
      } catch (const Error&) {
        error.Hint(
            "a container begins with its word count and has no magic: is this file a container?");
      }
      throw;
    }
  }

  void Inspect(Console& console) const {
    const Source source = SizeLimit::WithHint([&] { return Source::Open(input_, limit_.most()); });
    if (source.is_folder) throw Error(Finding::kOpenFailed, "is a folder").File(input_);
    if (kvf::Probe(source) == Confidence::kCertain) {
      throw Error(Finding::kBadMagic, "is a frame of libkvtool (.kvf), not a container of MNN")
          .File(input_)
          .Hint("'kvtool inspect {}' shows it", Printable(input_));
    }
    const GearLayout layout = Read(source.files[0].data->bytes());
    const FrameLook result = {HashedFile::Of(source), layout};
    if (!report_.json) Print(console, result);
    report_.Emit(console, "frame", FrameLookFields, result);
  }

  static GearLayout Read(ByteSpan container) {
    try {
      return ReadGear(container);
    } catch (Error& error) {
      error.Hint(
          "a container begins with its word count and has no magic: is this file a container?");
      throw;
    }
  }

  void Print(Console& console, const FrameLook& result) const {
    const GearLayout& layout = result.layout;
    console.Line(fmt::format("{}: gear container of {} values, {} planes ({})", Printable(input_),
                             layout.words, layout.planes.size(),
                             result.is_two() ? "f16 or bf16" : "f32"));
    console.Line(fmt::format("{} bytes, {} as values: {}", result.input.bytes, layout.raw_bytes(),
                             HumanRatio(layout.raw_bytes(), result.input.bytes)));
    TextTable table = MakeTextTable(PlaneFields(), layout.planes);
    table.head.insert(table.head.begin(), "plane");
    for (size_t i = 0; i < table.rows.size(); ++i) {
      table.rows[i].insert(table.rows[i].begin(), std::to_string(i));
    }
    console.Data(Table(table).Text("  "));
  }

  CommandLine *encode_ = nullptr, *decode_ = nullptr, *inspect_ = nullptr;
  std::string dtype_, predictors_, low_, high_;
  bool no_zstd_ = false;
  OutputOptions output_;
  SizeLimit limit_;
};

}  // namespace

const FieldTable& FrameFields() { return FrameLookFields(); }

std::unique_ptr<Command> MakeFrame() { return std::make_unique<Frame>(); }

}  // namespace kv
