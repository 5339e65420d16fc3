// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/profiled/profile.h"

#include "lib/api/context.h"

using namespace kv;       // NOLINT: the functions below are the library's outermost layer
using namespace kv::api;  // NOLINT

kvt_status kvt_profile_open(const void* src, size_t n, kvt_profile** out) {
  return Caught(nullptr, [&] {
    Require(out != nullptr, "out");
    *out = new kvt_profile{Profile::Read(Span(src, n))};
  });
}

void kvt_profile_free(kvt_profile* profile) { delete profile; }

void kvt_profile_hash(const kvt_profile* profile, uint8_t out[16]) {
  if (profile == nullptr || out == nullptr) return;
  std::memcpy(out, profile->profile->hash().data(), 16);
}

kvt_status kvt_ctx_use_profile(kvt_ctx* ctx, const kvt_profile* profile) {
  return Call(ctx, [&] {
    ctx->profile = profile == nullptr ? nullptr : profile->profile;
    ctx->coder.UseProfile(ctx->profile);
  });
}

kvt_status kvt_frame_profile(const void* src, size_t n, uint8_t out[16]) {
  return Caught(nullptr, [&] {
    Require(out != nullptr, "out");
    std::memcpy(out, ReadFrameHeader(Span(src, n)).profile.data(), 16);
  });
}
