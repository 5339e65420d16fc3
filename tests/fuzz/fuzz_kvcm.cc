// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as a weights .bin: the readers and the two loader models must agree on what loads, and
// what was read must be written again.
#include <cstdlib>

#include "formats/kvcm/kvcm.h"
#include "tests/fuzz/accepted.h"
#include "tests/support/memory_sink.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  kv::Source source;
  source.files.push_back({"fuzz", kv::FileSource::FromBytes(kv::Bytes(bytes, bytes + size), "")});
  const kv::ByteSpan file = source.files.front().data->bytes();
  const bool loads = kv::CsrcLoader(file, "fuzz.bin").loads;
  kv::LegacyLoader(file, "fuzz.bin");
  const kv::KvcmExamination examined = kv::ExamineKvcm(source);
  if (examined.weights.has_value() != loads) std::abort();
  if (examined.weights) {
    // A file that is read without a refusal is written as the same bytes.
    kv::MemorySink sink, again;
    kv::WriteKvcm(*examined.weights, examined.weights->dtype, sink);
    kv::Source written;
    written.files.push_back({"fresh", kv::FileSource::FromBytes(kv::Bytes(sink.bytes()), "")});
    const kv::CompressorWeights back = kv::ReadKvcm(written, kv::KvcmReading::kCompat);
    kv::WriteKvcm(back, back.dtype, again);
    if (again.bytes() != sink.bytes()) std::abort();
    ++kv::fuzz::accepted;
  }
  return 0;
}
