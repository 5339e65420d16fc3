// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A broken invariant ends a call of the library, not the process. No argument breaks one, so this
// program is linked with the library's insides.
#include <catch2/catch.hpp>

#include "lib/api/context.h"

namespace {

TEST_CASE("A broken invariant is KV9001, on the caller's thread and on the pool's") {
  kvt_pool* pool = nullptr;
  REQUIRE(kvt_pool_create(3, &pool) == 0);
  const kvt_params params = {sizeof params, 0, 0, pool};
  kvt_ctx* ctx = nullptr;
  REQUIRE(kvt_ctx_create(&params, &ctx) == 0);
  const int two = 2;
  CHECK(kv::api::Call(ctx, [&] { KV_ASSERT(two == 3); }) == KVT_E_INTERNAL);
  kvt_error error = {};
  error.struct_size = sizeof error;
  kvt_ctx_error(ctx, &error);
  CHECK(std::string_view(error.message).find("broken invariant: two == 3") !=
        std::string_view::npos);
  CHECK(kvt_fault(error.status) == KVT_FAULT_INTERNAL);
  CHECK(kv::api::Call(ctx, [&] {
          ctx->pool->Get().ParallelFor(64, [&](uint64_t i) { KV_ASSERT(i < 7); });
        }) == KVT_E_INTERNAL);
  // The context remains usable.
  const uint8_t raw[100] = {};
  uint8_t frame[300];
  CHECK(kvt_encode(ctx, nullptr, raw, sizeof raw, frame, sizeof frame, nullptr) == 0);
  kvt_ctx_free(ctx);
  kvt_pool_free(pool);
}

}  // namespace
