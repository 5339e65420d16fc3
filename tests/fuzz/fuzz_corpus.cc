// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as the manifest of a corpus and as a file of results: what is accepted can be written
// again, shared out, merged and shown.
#include <cstdlib>

#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"
#include "lib/corpus/corpus.h"
#include "lib/corpus/merge.h"
#include "tests/fuzz/accepted.h"
#include "tests/fuzz/fuzz_repair.h"

namespace {

using namespace kv;
using namespace kv::corpus;

void AsManifest(std::string_view text) {
  try {
    const Manifest manifest = ReadManifest(text);
    const Manifest again = ReadManifest(ManifestText(manifest));
    if (again.members.size() != manifest.members.size()) std::abort();
    for (const bool by_bytes : {false, true}) {
      size_t taken = 0;
      for (uint32_t i = 0; i < 3; ++i)
        taken += ListMembers({i, 3}, by_bytes, manifest.members).size();
      if (taken != manifest.members.size()) std::abort();
    }
    ++fuzz::accepted;
  } catch (const Error&) {
  }
}

void AsResults(std::string_view text) {
  try {
    Merger merger;
    merger.Add("fuzz", text);
    const Merged merged = merger.Finish();
    if (merged.entries != merged.head.corpus_entries) std::abort();
    if (merged.done + merged.negative + merged.failed != merged.entries) std::abort();
    const MergeReport report = MakeMergeReport(merged);
    if (ToJson(MergeReportFields().Object(report)).dump().empty()) std::abort();
    if (MergedPage(report).Text().empty()) std::abort();
    WriteMergedJunit(merged, [](std::string_view) {});
    ++fuzz::accepted;
  } catch (const Error&) {
  }
}

}  // namespace

// Returns the first line of a manifest, with the number and the hash of the following lines.
kv::Bytes FuzzRepair(kv::ByteSpan input, unsigned) {
  const std::string_view text = AsText(input);
  const size_t end = text.find('\n');
  if (end == text.npos) return {input.begin(), input.end()};
  try {
    nlohmann::ordered_json head = ParseLine(text.substr(0, end), 1);
    Manifest manifest;
    size_t number = 1;
    for (size_t begin = end + 1; begin < text.size();) {
      const size_t stop = std::min(text.find('\n', begin), text.size());
      const nlohmann::ordered_json line = ParseLine(text.substr(begin, stop - begin), ++number);
      manifest.members.push_back({TextIn(line, "name", number), NumberIn(line, "bytes", number),
                                  TextIn(line, "xxh3", number)});
      begin = stop + 1;
    }
    head["entries"] = manifest.members.size();
    head["xxh3"] = CorpusHash(manifest.members);
    const std::string repaired = head.dump() + std::string(text.substr(end));
    const ByteSpan bytes = AsBytes(repaired);
    return {bytes.begin(), bytes.end()};
  } catch (const Error&) {
    return {input.begin(), input.end()};
  } catch (const nlohmann::json::exception&) {
    return {input.begin(), input.end()};
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  AsManifest(text);
  AsResults(text);
  return 0;
}
