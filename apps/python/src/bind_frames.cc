// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/bindings.h"

namespace kvtool_python {

void BindFunctions(nb::module_& m) {
  using H = nb::handle;
  m.def(
      "encode",
      [](H data, H level, H dtype, H shape, H order, H role, H tag, H context) {
        return Encode(ContextOfThread(ParseLevel(level)), data,
                      Arguments(dtype, shape, order, role, tag, context));
      },
      nb::arg("data"), nb::kw_only(), nb::arg("level") = "default", nb::arg("dtype") = nb::none(),
      nb::arg("shape") = nb::none(), nb::arg("order") = "token_head_dim",
      nb::arg("role") = "unknown", nb::arg("tag") = 0, nb::arg("context") = nb::none(),
      nb::sig("def encode(data: Readable, *, level: Level = \"default\", dtype: DType = None, "
              "shape: Shape = None, order: "
              "str = \"token_head_dim\", role: str = \"unknown\", tag: int = 0, context: Key = "
              "None) -> bytes"),
      kEncodeDoc);
  m.def(
      "encode",
      [](H data, H level, H dtype, H shape, H order, H role, H tag, H context, H out) {
        return EncodeInto(ContextOfThread(ParseLevel(level)), data,
                          Arguments(dtype, shape, order, role, tag, context), out);
      },
      nb::arg("data"), nb::kw_only(), nb::arg("level") = "default", nb::arg("dtype") = nb::none(),
      nb::arg("shape") = nb::none(), nb::arg("order") = "token_head_dim",
      nb::arg("role") = "unknown", nb::arg("tag") = 0, nb::arg("context") = nb::none(),
      nb::arg("out"),
      nb::sig("def encode(data: Readable, *, level: Level = \"default\", dtype: DType = None, "
              "shape: Shape = None, order: "
              "str = \"token_head_dim\", role: str = \"unknown\", tag: int = 0, context: Key = "
              "None, out: Writable) -> int"));
  m.def(
      "decode",
      [](H frame, H context) { return Decode(ContextOfThread(KVT_DEFAULT), frame, context); },
      nb::arg("frame"), nb::kw_only(), nb::arg("context") = nb::none(),
      nb::sig("def decode(frame: Readable, *, context: Key = None) -> bytes"), kDecodeDoc);
  m.def(
      "decode",
      [](H frame, H context, H out) {
        return DecodeInto(ContextOfThread(KVT_DEFAULT), frame, context, out);
      },
      nb::arg("frame"), nb::kw_only(), nb::arg("context") = nb::none(), nb::arg("out"),
      nb::sig("def decode(frame: Readable, *, context: Key = None, out: Writable) -> int"));
  m.def(
      "decode_tokens",
      [](H frame, uint64_t begin, uint64_t count, H context) {
        return DecodeTokens(ContextOfThread(KVT_DEFAULT), frame, begin, count, context);
      },
      nb::arg("frame"), nb::arg("begin"), nb::arg("count"), nb::kw_only(),
      nb::arg("context") = nb::none(),
      nb::sig("def decode_tokens(frame: Readable, begin: int, count: int, *, context: Key = None) "
              "-> bytes"),
      kDecodeTokensDoc);
  m.def(
      "decode_tokens",
      [](H frame, uint64_t begin, uint64_t count, H context, H out) {
        return DecodeTokensInto(ContextOfThread(KVT_DEFAULT), frame, begin, count, context, out);
      },
      nb::arg("frame"), nb::arg("begin"), nb::arg("count"), nb::kw_only(),
      nb::arg("context") = nb::none(), nb::arg("out"),
      nb::sig("def decode_tokens(frame: Readable, begin: int, count: int, *, context: Key = None, "
              "out: Writable) -> int"));
  m.def(
      "verify_frame",
      [](H frame, H context) { VerifyFrame(ContextOfThread(KVT_DEFAULT), frame, context); },
      nb::arg("frame"), nb::kw_only(), nb::arg("context") = nb::none(),
      nb::sig("def verify_frame(frame: Readable, *, context: Key = None) -> None"),
      "Decode without an output, for scrubbers: raises Error unless all is well.");
  m.def(
      "encode_batch",
      [](H objects, H level, H dtype, H shape, H order, H role, H contexts, H tags, H outs) {
        return EncodeBatch(ContextOfThread(ParseLevel(level)), objects,
                           Arguments(dtype, shape, order, role, nb::int_(0), nb::none()), contexts,
                           tags, outs);
      },
      nb::arg("objects"), nb::kw_only(), nb::arg("level") = "default",
      nb::arg("dtype") = nb::none(), nb::arg("shape") = nb::none(),
      nb::arg("order") = "token_head_dim", nb::arg("role") = "unknown",
      nb::arg("contexts") = nb::none(), nb::arg("tags") = nb::none(), nb::arg("outs") = nb::none(),
      nb::sig(
          "def encode_batch(objects: Sequence[Pieces], *, level: Level = \"default\", dtype: DType "
          "= None, shape: Shape "
          "= None, order: str = \"token_head_dim\", role: str = \"unknown\", contexts: "
          "Sequence[Key] | None = None, tags: "
          "Sequence[int] | None = None, outs: Sequence[Writable] | None = None) -> BatchResult"),
      kEncodeBatchDoc);
  m.def(
      "decode_batch",
      [](H frames, H contexts, H outs) {
        return DecodeBatch(ContextOfThread(KVT_DEFAULT), frames, contexts, outs);
      },
      nb::arg("frames"), nb::kw_only(), nb::arg("contexts") = nb::none(),
      nb::arg("outs") = nb::none(),
      nb::sig("def decode_batch(frames: Sequence[Readable], *, contexts: Sequence[Key] | None = "
              "None, outs: "
              "Sequence[WritablePieces] | None = None) -> BatchResult"),
      kDecodeBatchDoc);
  m.def(
      "estimate",
      [](H data, H levels, H dtype, H shape, H order, H role) {
        return Estimate(ContextOfThread(KVT_DEFAULT), data, levels,
                        Arguments(dtype, shape, order, role, nb::int_(0), nb::none()));
      },
      nb::arg("data"), nb::arg("levels") = nb::make_tuple("fast", "default", "high", "max"),
      FRAME_KEYWORDS,
      nb::sig("def estimate(data: Readable, levels: Sequence[Level] = (\"fast\", \"default\", "
              "\"high\", \"max\"), *, dtype: DType = None, shape: Shape = None, order: str = "
              "\"token_head_dim\", role: str = \"unknown\") -> list[dict[str, Any]]"),
      "Per level: level, ratio, encode_mb_s and decode_mb_s (one thread, here and now), from a "
      "sample of at most 64 KiB. For choosing a level.");
  m.def("frame_info", &FrameInfo, nb::arg("frame"),
        nb::sig("def frame_info(frame: Readable) -> dict[str, Any]"),
        "What a frame's header says; its first 128 bytes suffice. The sizes are claims until the "
        "frame was decoded or "
        "verified.");
  m.def(
      "bound",
      [](uint64_t raw_bytes) {
        const size_t bound = kvt_encode_bound(raw_bytes);
        if (bound == 0) throw nb::value_error("raw_bytes: too large");
        return bound;
      },
      nb::arg("raw_bytes"), "Bytes that always suffice for a frame: raw_bytes + 128.");
  m.def(
      "hash128",
      [](H data) {
        uint8_t hash[16];
        if (nb::isinstance<nb::str>(data)) {
          Py_ssize_t size = 0;
          const char* text = PyUnicode_AsUTF8AndSize(data.ptr(), &size);
          if (text == nullptr) throw nb::python_error();
          kvt_hash128(text, static_cast<size_t>(size), hash);
        } else {
          const Buffer bytes(data, Buffer::Access::kRead);
          const nb::gil_scoped_release released;
          kvt_hash128(bytes.data(), bytes.bytes(), hash);
        }
        return nb::bytes(hash, sizeof hash);
      },
      nb::arg("data"), nb::sig("def hash128(data: Readable | str) -> bytes"),
      "XXH3-128 of bytes, or of a text in UTF-8: what contexts are made with. It finds accidents, "
      "not attackers.");
}

}  // namespace kvtool_python

NB_MODULE(_kvtool, m) {
  using namespace kvtool_python;
  // An engine ends while its threads still hold contexts; what a process that ends does not free is
  // no news to its user.
  nb::set_leak_warnings(false);
  BindBatchResult(m);
  BindContext(m);
  BindFunctions(m);
  m.def(
      "_explain",
      [](int finding) {
        const kvt_status status = -finding;
        return nb::make_tuple(kvt_explain(status, 0), kvt_explain(status, 1),
                              kvt_explain(status, 2), kvt_fault(status));
      },
      nb::arg("finding"), nb::sig("def _explain(finding: int) -> tuple[str, str, str, int]"));
  BindFiles(m);
  m.def(
      "_version", [] { return nb::make_tuple(kvt_version(), kvt_build()); },
      nb::sig("def _version() -> tuple[int, str]"));
}
