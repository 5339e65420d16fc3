// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/api/callbacks.h"
#include "lib/api/kvtool_study.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/analysis/tensor_analysis.h"

namespace kv::api {
namespace {

void Tell(const analysis::TensorAnalysis& found, kvt_analysis* to) {
  kvt_analysis out = {};
  const analysis::Measured& coded = *found.own;
  const auto most =
      std::ranges::max_element(coded.codecs, {}, [](const auto& count) { return count.second; });
  out.codec = most == coded.codecs.end() ? 0 : static_cast<uint32_t>(most->first);
  out.raw_bytes = coded.raw_bytes;
  out.coded_bytes = coded.coded_bytes;
  out.bits_per_value = found.reached_bits();
  out.bound_bits_per_value = found.bound().total_bits();
  out.values = found.stats.values;
  out.nans = found.stats.nan_count;
  out.infinities = found.stats.infinite_count;
  out.zeros = found.stats.zero_count;
  out.zero_rows = found.structure.zero_rows;
  out.repeated_rows = found.structure.repeated_rows;
  Fill(to, out);
}

}  // namespace
}  // namespace kv::api

kvt_status kvt_analyze(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                       kvt_analysis* out, const kvt_sink* json) {
  using namespace kv;       // NOLINT: the library's outermost layer
  using namespace kv::api;  // NOLINT
  return Call(ctx, [&] {
    if (out != nullptr) {
      RequireSize(out, "out->struct_size");
      RequireApart(Span(src, n), {reinterpret_cast<std::byte*>(out), out->struct_size},
                   "src and out overlap");
    }
    if (json != nullptr) CheckedSink(json);
    Require(desc != nullptr, "desc");
    const KvTensor shape = MakeTensor(*desc);
    const ByteSpan raw = Span(src, n);
    Require(n == shape.bytes(), "n: differs from the tensor's bytes");
    const KvTensor tensor = ContiguousTensor(raw.data(), shape.dtype, shape.tokens(), shape.heads,
                                             shape.head_dim, static_cast<Order>(desc->order));
    analysis::TensorOptions options;
    options.effort = ctx->level;
    const analysis::TensorAnalysis found =
        analysis::AnalyseTensor({}, tensor, desc->role == KVT_V, options);
    if (!found.decodes())
      throw Error(Finding::kInternal, "the decoded bytes differ from the encoded ones");
    if (out != nullptr) Tell(found, out);
    if (json != nullptr) CallbackSink(*json).Write(AsBytes(analysis::TensorJsonText(found)));
  });
}
