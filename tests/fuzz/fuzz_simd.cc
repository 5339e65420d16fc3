// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The same bytes to every SIMD target: all must equal the scalar specification.
#include <cstdlib>
#include <cstring>

#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/planes.h"
#include "lib/core/kernels/predict.h"
#include "lib/core/kernels/reference.h"
#include "lib/core/kernels/rle.h"
#include "lib/core/kernels/targets.h"
#include "tests/fuzz/accepted.h"

namespace {

using namespace kv;

void Expect(bool equal) {
  if (!equal) std::abort();
}

template <size_t kPlanes>
void Planes(const Bytes& raw) {
  const size_t words = raw.size() / kPlanes;
  Bytes got(words * kPlanes), wanted(got.size()), back(got.size());
  std::byte *to[kPlanes], *expected[kPlanes];
  for (size_t b = 0; b < kPlanes; ++b) {
    to[b] = got.data() + b * words;
    expected[b] = wanted.data() + b * words;
  }
  ref::SplitPlanes<kPlanes>(raw.data(), words, expected);
  if constexpr (kPlanes == 2) {
    SplitPlanes2(raw.data(), words, to[0], to[1]);
    JoinPlanes2(to[0], to[1], words, back.data());
  } else {
    SplitPlanes4(raw.data(), words, to);
    const std::byte* const from[] = {to[0], to[1], to[2], to[3]};
    JoinPlanes4(from, words, back.data());
  }
  Expect(got == wanted);
  Expect(std::equal(back.begin(), back.end(), raw.begin()));
}

using Transform = void (*)(const std::byte*, size_t, std::byte*) noexcept;
using Reference = void (*)(const std::byte*, size_t, std::byte*, std::byte) noexcept;

void Predictor(Transform kernel, Reference reference, const Bytes& raw) {
  Bytes got(raw.size()), wanted(raw.size());
  kernel(raw.data(), raw.size(), got.data());
  reference(raw.data(), raw.size(), wanted.data(), std::byte{0});
  Expect(got == wanted);
}

void Rle(const Bytes& raw) {
  Bytes got(RleEncodedSize(raw.data(), raw.size())), wanted(RleBound(raw.size()));
  Expect(RleEncode(raw.data(), raw.size(), got.data()) == got.size());
  wanted.resize(ref::RleEncode(raw.data(), raw.size(), wanted.data()));
  Expect(got == wanted);
}

using Widen = void (*)(const std::byte*, float*, size_t) noexcept;
using Narrow = void (*)(const float*, std::byte*, size_t) noexcept;

void Convert(Widen widen, Widen widen_reference, Narrow narrow, Narrow narrow_reference,
             const Bytes& raw) {
  if (raw.size() < 4) return;
  std::vector<float> got(raw.size() / 2), wanted(got.size()), floats(raw.size() / 4);
  widen(raw.data(), got.data(), got.size());
  widen_reference(raw.data(), wanted.data(), wanted.size());
  Expect(std::memcmp(got.data(), wanted.data(), 4 * got.size()) == 0);
  std::memcpy(floats.data(), raw.data(), 4 * floats.size());
  Bytes halves(2 * floats.size()), expected(halves.size());
  narrow(floats.data(), halves.data(), floats.size());
  narrow_reference(floats.data(), expected.data(), floats.size());
  Expect(halves == expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<SimdTarget> targets = SimdTargets();
  if (size == 0) return 0;
  const ByteSpan input = std::as_bytes(std::span(data, size));
  const Bytes raw(input.begin(), input.end());
  for (const SimdTarget& target : targets) {
    if (!target.supported || !ForceSimdTarget(target.name)) continue;
    Planes<2>(raw);
    Planes<4>(raw);
    Predictor(DeltaEncode, ref::DeltaEncode, raw);
    Predictor(XorEncode, ref::XorEncode, raw);
    Predictor(DeltaDecode, ref::DeltaDecode, raw);
    Predictor(XorDecode, ref::XorDecode, raw);
    Rle(raw);
    Convert(HalfToFloat, ref::HalfToFloat, FloatToHalf, ref::FloatToHalf, raw);
    Convert(BFloatToFloat, ref::BFloatToFloat, FloatToBFloat, ref::FloatToBFloat, raw);
  }
  ++kv::fuzz::accepted;  // this target refuses no input
  return 0;
}
