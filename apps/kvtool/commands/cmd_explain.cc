// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/exit_status.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

// The texts of a finding that `kvtool explain` prints beside its meaning.
struct Explanation {
  Finding finding;
  std::string_view why;      // the reason why the finding matters
  std::string_view what;     // what the user can do about it
  std::string_view example;  // commands, or lines of code for findings of the library
};

using enum Finding;

constexpr Explanation kExplanations[] = {
    {kUsage, "Nothing was read or written, because a misunderstood command could overwrite a file.",
     "Read the hint below the message; it names the flag or the value that was expected.",
     "$ kvtool compress slot0.bin --level 9\n"
     "$ kvtool compress -h"},
    {kGeometryMissing,
     "Without heads, values cannot be told apart: most ratios and every replay need them.",
     "Give the model's file as --model, or the number of KV heads, or the size of a head.",
     "$ kvtool inspect slot0.bin --model model.gguf\n"
     "$ kvtool inspect slot0.bin --kv-heads 8"},
    {kUnknownFormat, "Bytes that are read in the wrong way would give figures that mean nothing.",
     "See what 'kvtool formats' lists. Describe the layout of headerless values with --raw, or "
     "store the file as it is with --from opaque.",
     "$ kvtool inspect kv.bin --raw f16:2LTHD:2,32,?,8,128\n"
     "$ kvtool compress kv.bin --from opaque"},
    {kAmbiguousFormat,
     "Only one of the readings is right, and a guess would be wrong half of the time.",
     "Choose one by the flag that the message names.",
     "$ kvtool inspect kv.npy --layout thd\n"
     "$ kvtool inspect kv.npy --from npy"},
    {kConfig, "A setting that is silently ignored would let a check pass that never ran.",
     "Correct the key that the message names: keys of --config are the long names of options, "
     "those of a gate are in its schema.",
     "$ kvtool compress --help\n"
     "$ kvtool schema gate-config"},
    {kOutputTooSmall, "The output would be cut off. Nothing was written beyond the buffer.",
     "Ask for the size that always suffices, then call again.",
     "size_t room = kvt_encode_bound(raw_bytes);"},
    {kBusy, "Two calls in one context would overwrite each other's scratch memory.",
     "Make a context for each thread; let them share a pool.",
     "kvt_ctx_create(&params, &mine);  // in each thread, params.pool the same"},
    {kCancelled, "What the call was writing is not complete.",
     "Discard the output. Call again if you still need it.",
     "kvt_ctx_cancel(ctx);  // from another thread: the call returns KV0008"},
    {kNoMemory, "The call has no result; nothing else has changed.",
     "Free memory, use smaller batches, or give the context less to do at a time.",
     "kvt_ctx_bytes(&params);  // the most that a context needs"},
    {kBadArgument, "The library cannot know what was meant, and does not guess.",
     "Compare the call with the comment of the function in kvtool.h; set struct_size of every "
     "struct.",
     "kvt_params params = {.struct_size = sizeof(params)};"},
    {kOpenFailed, "Nothing could be read, so nothing is known of the file.",
     "Check the path, and whether you may read it.",
     "$ ls -l slot0.bin\n"
     "$ kvtool inspect ./slots/slot0.bin"},
    {kReadFailed, "What was read before may be incomplete, so no result was given.",
     "Look at the system's log: a disk or network drive may be failing, or the file was truncated "
     "while it was read.",
     "$ dmesg | tail\n"
     "$ cp slot0.bin /tmp/ && kvtool verify /tmp/slot0.bin.kvz"},
    {kWriteFailed,
     "The output does not exist under its final name, so that half of it cannot be mistaken for "
     "the whole.",
     "Make room, or write to another disk.",
     "$ df -h .\n"
     "$ kvtool compress slot0.bin -o /big/slot0.kvz"},
    {kExists, "A cache that took hours to make is not replaced by accident.",
     "Give -f to replace it, or another name.",
     "$ kvtool compress slot0.bin -f\n"
     "$ kvtool compress slot0.bin -o slot0-max.kvz --level max"},
    {kUnsafeName,
     "An archive from a stranger could otherwise write to any file that you may write.",
     "Do not trust the archive. Its tensors can be written elsewhere with --to.",
     "$ kvtool decompress strange.kvz --to npz -o tensors.npz"},
    {kNoResources, "The work was stopped, and its output was not written.",
     "Use fewer threads, raise the limit, or work on a part.",
     "$ kvtool compress slot0.bin -T 1\n"
     "$ ulimit -v unlimited"},
    {kTruncated,
     "Values are missing at the end; a cache restored from it would lack tokens or layers.",
     "Copy the file again and compare the sizes. From a truncated archive, --keep-going restores "
     "what is left.",
     "$ kvtool decompress cut.kvz --keep-going -o what-is-left.bin"},
    {kTrailingBytes,
     "The writer appended too much: it has another version, or wrote two files into one.",
     "Check what wrote the file. If the bytes do not matter, store them as they are.",
     "$ kvtool compress odd.bin --from opaque"},
    {kBadMagic, "Read as this format, the bytes would be nonsense.",
     "Leave --from out, so that the format is detected from the bytes.",
     "$ kvtool inspect slot0.bin"},
    {kBadVersion, "The header is damaged, so the rest of the file cannot be trusted either.",
     "Get the file again from where it was made.", "$ cmp slot0.bin /backup/slot0.bin"},
    {kBadHeader, "Sizes and offsets come from the header: if it is wrong, every value is wrong.",
     "Compare with the grammar of the format, if you write the file yourself; else get it again.",
     "$ kvtool formats\n"
     "$ head -c 64 slot0.bin | xxd"},
    {kBadField, "A program that believed the field would read the wrong values, or crash.",
     "The message names the field, what it holds and what is allowed. Get the file again, or fix "
     "the program that writes it.",
     "$ kvtool inspect slot0.bin   # ... (offset 0x10): found 70000, expected at most 65535"},
    {kOverflow,
     "Such sizes are an attack or damage: a program that computed with them would read elsewhere.",
     "Do not trust the file.", "$ kvtool inspect strange.bin; echo $?"},
    {kSizeMismatch, "One of the two is wrong, and it is unknown which.",
     "Check whether a tool changed the file after it was written and updated only one of the two.",
     "$ kvtool inspect cache.safetensors --tensors"},
    {kBadOffsets, "Overlapping ranges let one byte be two values; holes hide bytes from a check.",
     "Write the file again with the tool that made it.",
     "$ python -c 'from safetensors import safe_open; safe_open(\"cache.safetensors\", \"np\")'"},
    {kUnknownDtype, "Without the type, the number of bits of a value is unknown.",
     "If you know the type, name it.", "$ kvtool inspect kv.npy --input-dtype bf16"},
    {kDuplicateName, "A check could read one of the two while a program loads the other.",
     "Write the file again with each name once.", "$ unzip -l cache.npz | sort | uniq -d"},
    {kBadName, "A name that cannot be shown or stored safely could mislead whoever reads it.",
     "Rename the tensor or the file where it is made.", "$ kvtool inspect cache.npz --tensors"},
    {kMissingRecord, "Part of the cache is missing.",
     "Copy the whole folder, with the small files beside the large ones.",
     "$ cp -r dump/run_1 elsewhere && kvtool inspect elsewhere/run_1"},
    {kLimit, "A file of a few bytes can claim any size: the limit keeps it from filling memory.",
     "If you trust the file, raise the limit.", "$ kvtool inspect large.npz --max-bytes 200GiB"},
    {kBadText, "Names and shapes come from this text: a guess could take one tensor for another.",
     "Check the text with a JSON tool, or write the file again.", "$ jq . dump/run_1/meta.json"},
    {kInconsistent, "The parts are not of one run, or one of them is damaged.",
     "Make sure that all files come from the same run, and give all of them.",
     "$ kvtool inspect dump/run_1 --tensors"},
    {kBadFrame, "The payload cannot be decoded, so these values are lost.",
     "Get the file again. --keep-going restores the other chunks of an archive.",
     "$ kvtool verify slot0.kvz --keep-going"},
    {kBadPayload, "The values of this chunk are lost; no others depend on them.",
     "Get the archive again, or restore the rest.",
     "$ kvtool decompress slot0.kvz --keep-going -o what-is-left.bin"},
    {kChecksum, "The bytes are not those that were stored: a disk, a copy or memory changed them.",
     "Get the file again; check the disk if it happens twice.",
     "$ kvtool verify slot0.kvz\n"
     "$ xxhsum -H3 slot0.kvz"},
    {kLostChunk, "A cache with zeros in place of values gives wrong answers without an error.",
     "Restore from another copy. Use what --keep-going writes only where zeros do no harm.",
     "$ kvtool verify slot0.kvz --json | jq .damage"},
    {kContentDiffers, "The restored copy is wrong and must not be used.",
     "Keep the source, and report it with 'kvtool targets': either memory fails or kvtool does.",
     "$ kvtool verify slot0.kvz --against slot0.bin"},
    {kContextDiffers, "Values of another prompt would be attended to as if they were this one's.",
     "Compute the cache anew, and store it under its own key.",
     "// a status of KV1106 from kvt_decode is a cache miss"},
    {kReferenceMissing, "The rows shared with the reference cannot be restored without it.",
     "Name the cache with --base, or put it back beside the archive under its old name.",
     "$ kvtool decompress today.kvz --base yesterday.bin"},
    {kReferenceDiffers, "Other rows would restore other values; nothing is written.",
     "Look for an older copy, in any format, or for an archive of it.",
     "$ kvtool verify today.kvz --base copy-of-yesterday.kvz"},
    {kProfileMissing, "Without the profile nothing of the page can be restored.",
     "Give it with --profile, or lay it beside the archive or frame; give a context the profile of "
     "that hash (kvt_profile_open, kvt_ctx_use_profile). Keep profiles as long as what "
     "was coded with them. A lossy archive needs its transform likewise (.kvx, --transform).",
     "$ kvtool inspect model.kvp   # its second line is the hash"},
    {kForbiddenGlobal, "Loading the file in Python could run any program on your machine.",
     "Do not load the file elsewhere either. Save tensors alone, as safetensors or with "
     "weights_only.",
     "$ kvtool inspect strange.pt"},
    {kForbiddenOpcode, "The opcode can call functions, which data never needs.",
     "Save the tensors again, as a plain dict of tensors.",
     "torch.save({name: t.cpu() for name, t in cache.items()}, \"cache.pt\")"},
    {kBadPickle, "The file is cut or damaged, or was made by hand.",
     "Save it again with torch.save.", "torch.save(past_key_values, \"cache.pt\")"},
    {kBadZip, "Two zip readers could see different files in it.",
     "Write it again with numpy or torch; zip tools that append or align can spoil it.",
     "$ unzip -t cache.npz"},
    {kUnsupportedVersion, "A newer version may give the same bytes another meaning.",
     "Update kvtool, or convert the file with the engine that wrote it.",
     "$ kvtool --version\n"
     "$ kvtool convert hf.pt --to llama-state --target-version b6122 -o state.bin"},
    {kUnsupportedKind, "The file holds no keys and values that kvtool could measure.",
     "To archive the file, store it as opaque bytes.", "$ kvtool compress odd.bin --from opaque"},
    {kUnsupportedDtype, "The figures would describe rounded or reinterpreted values.",
     "Convert the cache first, if that is what you want.",
     "$ kvtool convert q8.bin --to npz --dtype f16 -o half.npz"},
    {kUnsupportedLayout, "Values would be written in the wrong places.",
     "Convert to a format that does not need this order.",
     "$ kvtool convert slot0.bin --to safetensors -o slot0.safetensors"},
    {kTraceMismatch, "Attention of one run over the keys of another means nothing.",
     "Give the trace that was recorded with this cache, up to the same token.",
     "$ kvtool trace inspect t.npz\n"
     "$ kvtool inspect slot0.bin"},
    {Finding::kInternal, "After a bug no result can be trusted, so none was given.",
     "Report it with the command, the message and what 'kvtool targets' prints.",
     "$ kvtool targets"},
};

std::string Indented(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    out += fmt::format("  {}\n", text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

const Explanation& FindExplanation(Finding finding) {
  for (const Explanation& explanation : kExplanations) {
    if (explanation.finding == finding) return explanation;
  }
  AssertionFailed("every Finding is explained", __FILE__, __LINE__);
}

// Parses "1001", "KV1001" or "kv1001"; nothing if no finding has the number.
std::optional<FindingInfo> ParseFinding(std::string_view text) {
  const bool has_letters =
      text.size() > 2 && (text[0] == 'K' || text[0] == 'k') && (text[1] == 'V' || text[1] == 'v');
  if (has_letters) text.remove_prefix(2);
  const auto number = ParseNumber<unsigned>(text);
  for (const FindingInfo& info : AllFindings()) {
    if (static_cast<unsigned>(info.finding) == number) return info;
  }
  return std::nullopt;
}

std::string ExplanationText(const FindingInfo& info) {
  const Explanation& more = FindExplanation(info.finding);
  return fmt::format(
      "{}: {}\n\nWhat happened:\n{}\nWhy it matters:\n{}\nWhat to do:\n{}\nExample:\n{}\nExit "
      "status {}.\n",
      FindingId(info.finding), info.summary, Indented(info.explanation), Indented(more.why),
      Indented(more.what), Indented(more.example), static_cast<int>(ExitStatusFor(info.code)));
}

class Explain : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("FINDING", id_, "A number such as KV1001, kv1001 or 1001; without one all are listed");
  }

  ExitStatus Run(Context& context) override {
    if (id_.empty()) {
      Table table({"finding", "exit", "what it means"});
      for (const FindingInfo& info : AllFindings()) {
        table.Row({FindingId(info.finding), std::to_string(ExitStatusFor(info.code)),
                   std::string(info.summary)});
      }
      context.console.Data(table.Text());
      return kDone;
    }
    if (const std::optional<FindingInfo> info = ParseFinding(id_)) {
      context.console.Data(ExplanationText(*info));
      return kDone;
    }
    throw Error(Finding::kUsage, "unknown finding '{}'", Escaped(id_))
        .Hint("'kvtool explain' lists them");
  }

 private:
  std::string id_;
};

}  // namespace

std::unique_ptr<Command> MakeExplain() { return std::make_unique<Explain>(); }

}  // namespace kv
