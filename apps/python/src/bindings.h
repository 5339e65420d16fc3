// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by bind_context.cc, bind_frames.cc, snapshots.cc

#include "apps/python/src/context.h"

// The names of kvtool._kvtool. Signatures and docstrings are written here once: the stub is
// generated from them.
#define FRAME_KEYWORDS                                                         \
  nb::kw_only(), nb::arg("dtype") = nb::none(), nb::arg("shape") = nb::none(), \
                 nb::arg("order") = "token_head_dim", nb::arg("role") = "unknown"

namespace kvtool_python {

void BindBatchResult(nb::module_& m);
void BindContext(nb::module_& m);
void BindFunctions(nb::module_& m);
void BindFiles(nb::module_& m);

inline DescriptionArguments Arguments(nb::handle dtype, nb::handle shape, nb::handle order,
                                      nb::handle role, nb::handle tag, nb::handle context) {
  return {dtype, shape, order, role, tag, context};
}

// What a method of Context and the function of the module share.
inline constexpr char kEncodeDoc[] =
    R"(Compress one page, chunk or tensor into a frame that is complete in itself.

data: any contiguous memory: bytes, memoryview, a NumPy array (ml_dtypes too), a tensor on the CPU.
dtype: what its values are, where the object cannot say: "bf16", "f16", ...; integers of two bytes count as bf16. Values of
    a type that no frame has are a TypeError; "u8" keeps their bytes alone.
shape: in values, (tokens, heads, head_dim) in the order given; the array's own by default. Axes before the last
    three count as tokens; with two axes there is one head. A shape that does not fit is dropped.
order: "token_head_dim" or "head_token_dim"; "unknown" for none.
role: "k", "v", "kv" (side by side in each head) or "unknown".
tag: a number of the caller's own. context: 16 bytes that name model, layer and tokens (hash128); decoding checks them.
out: a writable buffer of bound(len(data)) bytes; then the size of the frame is returned.

Only context is checked when the frame is decoded: a wrong dtype or shape costs compression and nothing else.)";

inline constexpr char kDecodeDoc[] =
    R"(The raw bytes of a frame, checked against the hash in its header.

frame: bytes after the frame are ignored.
context: 16 bytes that the frame must carry; None: not checked.
out: a writable buffer of exactly the raw size, filled; then that size is returned. After an error it holds garbage.)";

inline constexpr char kDecodeTokensDoc[] =
    R"(Tokens [begin, begin + count) alone, as [token][head][dim], checked by the hashes of the segments they lie in.

Possible where frame_info(frame)["segment_tokens"] is not 0; otherwise KV1302.)";

inline constexpr char kEncodeBatchDoc[] =
    R"(Compress many objects in one call, spread over the context's threads.

objects: one entry per object: a buffer, or a list or tuple of buffers (pieces) that together are one object, in order.
contexts, tags, outs: None, or one entry per object. dtype, shape, order and role hold for all; an object in pieces has
    the shape given or none, and without dtype the type of its pieces, which have to agree.
outs: writable buffers of bound(raw bytes) bytes each; then result.objects holds None.

Failures are values in result.status; one bad object changes no other.)";

inline constexpr char kDecodeBatchDoc[] =
    R"(Decode many frames in one call, spread over the context's threads.

contexts: None, or per frame 16 bytes to be checked, or None.
outs: None, or per frame a writable buffer, or a list or tuple of writable buffers that are filled in order.

Failures are values in result.status; what a failed frame was to fill holds garbage.)";

}  // namespace kvtool_python
