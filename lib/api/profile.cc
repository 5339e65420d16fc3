// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/profiled/profile.h"

#include "lib/api/callbacks.h"
#include "lib/api/context.h"
#include "lib/core/archive/train.h"
#include "lib/core/snapshot/layout.h"

namespace kv::api {
namespace {

constexpr size_t kMostProfileName = 255;

// Returns K or V of one layer as a cache without anything else.
Snapshot CacheOfPart(const kvt_part& part, ByteSpan values) {
  Require(part.desc != nullptr, "part->desc");
  Require(part.desc->role == KVT_K || part.desc->role == KVT_V, "part->desc->role");
  KvTensor tensor = TensorOf(*part.desc);
  Require(values.size() == tensor.bytes(), "sizes: not the bytes of the part");
  tensor = ContiguousTensor(values.data(), tensor.dtype, tensor.tokens(), tensor.heads,
                            tensor.head_dim, static_cast<Order>(part.desc->order));
  Snapshot cache;
  LayerKv& layer = cache.layers.emplace_back();
  layer.index = part.layer;
  if (part.desc->role == KVT_V) {
    layer.v = std::move(tensor);
  } else {
    layer.k = std::move(tensor);
  }
  return cache;
}

}  // namespace
}  // namespace kv::api

using namespace kv;       // NOLINT: the functions below are the library's outermost layer
using namespace kv::api;  // NOLINT

kvt_status kvt_profile_open(const void* src, size_t n, kvt_profile** out) {
  return Caught(nullptr, [&] {
    Require(out != nullptr, "out");
    *out = new kvt_profile{Profile::Read(Span(src, n))};
  });
}

void kvt_profile_free(kvt_profile* profile) { delete profile; }

kvt_status kvt_profile_hash(const kvt_profile* profile, uint8_t out[16]) {
  return Caught(nullptr, [&] {
    Require(profile != nullptr && out != nullptr, "profile, out");
    std::memcpy(out, profile->profile->hash().data(), 16);
  });
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

kvt_status kvt_train(kvt_ctx* ctx, const kvt_part* parts, const void* const* values,
                     const size_t* sizes, size_t count, const char* name, const kvt_sink* sink) {
  return Call(ctx, [&] {
    Require(values != nullptr && sizes != nullptr && count > 0, "values, sizes, count");
    const auto given = GivenElements(parts, count, "parts->struct_size");
    const std::string model = name == nullptr ? "" : name;
    Require(model.size() <= kMostProfileName, "name: more than 255 bytes");
    CallbackSink out(CheckedSink(sink));
    ProfileBuilder builder;
    for (size_t i = 0; i < count; ++i) {
      builder.Add(CacheOfPart(given[i], Span(values[i], sizes[i])));
      ctx->state.StopIfCancelled();
    }
    out.Write(builder.Finish(model)->file());
  });
}
