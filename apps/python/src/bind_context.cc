// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/bindings.h"

namespace kvtool_python {

void BindContext(nb::module_& m) {
  using H = nb::handle;
  nb::class_<Profile>(m, "Profile",
                      "What pages of one model look like, as train() or `kvtool train` learnt it: "
                      "short pages coded "
                      "with it need no tables of their own.")
      .def(
          "__init__", [](Profile* self, H file) { new (self) Profile(file); }, nb::arg("file"),
          nb::sig("def __init__(self, file: Readable) -> None"),
          "file: the bytes of a .kvp file; KV1003 and other findings where it is none.")
      .def_prop_ro("hash", &Profile::hash, nb::for_getter(nb::sig("def hash(self) -> bytes")),
                   "16 bytes, by which frames and archives name it.");
  nb::class_<Context>(
      m, "Context",
      "Level, threads and scratch memory for many calls. One call at a time: a second thread gets "
      "KV0007. cancel() and stats() may be called beside a running call.")
      .def(
          "__init__",
          [](Context* self, H level, uint32_t threads, uint64_t max_raw_bytes,
             const Profile* profile) {
            new (self) Context(ParseLevel(level), threads, max_raw_bytes, profile);
          },
          nb::arg("level") = "default", nb::arg("threads") = 1, nb::kw_only(),
          nb::arg("max_raw_bytes") = 0, nb::arg("profile").none() = nb::none(),
          nb::sig("def __init__(self, level: Level = \"default\", threads: int = 1, *, "
                  "max_raw_bytes: int = 0, profile: Profile | None = None) -> None"),
          "threads: the caller's included; 0: as many as the process may use. max_raw_bytes: "
          "larger objects are refused "
          "with KV1014; 0: no limit. profile: what frames are coded with at levels from default "
          "on, "
          "wherever it makes them smaller; they decode with it alone.")
      .def_prop_ro(
          "level", [](const Context& self) { return LevelName(self.level()); },
          "\"fast\" to \"max\".")
      .def_prop_ro("threads", &Context::threads, "As given.")
      .def(
          "encode",
          [](Context& self, H data, H dtype, H shape, H order, H role, H tag, H context) {
            return Encode(self.get(), data, Arguments(dtype, shape, order, role, tag, context));
          },
          nb::arg("data"), FRAME_KEYWORDS, nb::arg("tag") = 0, nb::arg("context") = nb::none(),
          nb::sig("def encode(self, data: Readable, *, dtype: DType = None, shape: Shape = None, "
                  "order: str = "
                  "\"token_head_dim\", role: str = \"unknown\", tag: int = 0, context: Key = None) "
                  "-> bytes"),
          kEncodeDoc)
      .def(
          "encode",
          [](Context& self, H data, H dtype, H shape, H order, H role, H tag, H context, H out) {
            return EncodeInto(self.get(), data, Arguments(dtype, shape, order, role, tag, context),
                              out);
          },
          nb::arg("data"), FRAME_KEYWORDS, nb::arg("tag") = 0, nb::arg("context") = nb::none(),
          nb::arg("out"),
          nb::sig("def encode(self, data: Readable, *, dtype: DType = None, shape: Shape = None, "
                  "order: str = "
                  "\"token_head_dim\", role: str = \"unknown\", tag: int = 0, context: Key = None, "
                  "out: Writable) -> int"))
      .def(
          "decode",
          [](Context& self, H frame, H context) { return Decode(self.get(), frame, context); },
          nb::arg("frame"), nb::kw_only(), nb::arg("context") = nb::none(),
          nb::sig("def decode(self, frame: Readable, *, context: Key = None) -> bytes"), kDecodeDoc)
      .def(
          "decode",
          [](Context& self, H frame, H context, H out) {
            return DecodeInto(self.get(), frame, context, out);
          },
          nb::arg("frame"), nb::kw_only(), nb::arg("context") = nb::none(), nb::arg("out"),
          nb::sig(
              "def decode(self, frame: Readable, *, context: Key = None, out: Writable) -> int"))
      .def(
          "decode_tokens",
          [](Context& self, H frame, uint64_t begin, uint64_t count, H context) {
            return DecodeTokens(self.get(), frame, begin, count, context);
          },
          nb::arg("frame"), nb::arg("begin"), nb::arg("count"), nb::kw_only(),
          nb::arg("context") = nb::none(),
          nb::sig("def decode_tokens(self, frame: Readable, begin: int, count: int, *, context: "
                  "Key = None) -> bytes"),
          kDecodeTokensDoc)
      .def(
          "decode_tokens",
          [](Context& self, H frame, uint64_t begin, uint64_t count, H context, H out) {
            return DecodeTokensInto(self.get(), frame, begin, count, context, out);
          },
          nb::arg("frame"), nb::arg("begin"), nb::arg("count"), nb::kw_only(),
          nb::arg("context") = nb::none(), nb::arg("out"),
          nb::sig("def decode_tokens(self, frame: Readable, begin: int, count: int, *, context: "
                  "Key = None, out: "
                  "Writable) -> int"))
      .def(
          "verify_frame",
          [](Context& self, H frame, H context) { VerifyFrame(self.get(), frame, context); },
          nb::arg("frame"), nb::kw_only(), nb::arg("context") = nb::none(),
          nb::sig("def verify_frame(self, frame: Readable, *, context: Key = None) -> None"),
          "Decode without an output, for scrubbers: raises Error unless all is well.")
      .def(
          "encode_batch",
          [](Context& self, H objects, H dtype, H shape, H order, H role, H contexts, H tags,
             H outs) {
            return EncodeBatch(self.get(), objects,
                               Arguments(dtype, shape, order, role, nb::int_(0), nb::none()),
                               contexts, tags, outs);
          },
          nb::arg("objects"), FRAME_KEYWORDS, nb::arg("contexts") = nb::none(),
          nb::arg("tags") = nb::none(), nb::arg("outs") = nb::none(),
          nb::sig("def encode_batch(self, objects: Sequence[Pieces], *, dtype: DType = None, "
                  "shape: Shape = None, "
                  "order: str = \"token_head_dim\", role: str = \"unknown\", contexts: "
                  "Sequence[Key] | None = None, tags: "
                  "Sequence[int] | None = None, outs: Sequence[Writable] | None = None) -> "
                  "BatchResult"),
          kEncodeBatchDoc)
      .def(
          "decode_batch",
          [](Context& self, H frames, H contexts, H outs) {
            return DecodeBatch(self.get(), frames, contexts, outs);
          },
          nb::arg("frames"), nb::kw_only(), nb::arg("contexts") = nb::none(),
          nb::arg("outs") = nb::none(),
          nb::sig("def decode_batch(self, frames: Sequence[Readable], *, contexts: Sequence[Key] | "
                  "None = None, outs: "
                  "Sequence[WritablePieces] | None = None) -> BatchResult"),
          kDecodeBatchDoc)
      .def("stats", &Stats, nb::sig("def stats(self) -> dict[str, int]"),
           "Sums since creation: raw_bytes, stored_bytes, encode_ns, decode_ns, frames, "
           "stored_raw, decoded, refused. Any "
           "thread.")
      .def(
          "cancel", [](Context& self) { kvt_ctx_cancel(self.get()); },
          "The call that runs raises KV0008 within one segment. Any thread; without a running call "
          "nothing happens.");
}

void BindBatchResult(nb::module_& m) {
  nb::class_<BatchResult>(m, "BatchResult", "What came of a batch, in the order of its items.")
      .def_prop_ro(
          "objects", [](const BatchResult& self) { return self.objects; },
          nb::for_getter(nb::sig("def objects(self) -> list[bytes | None]")),
          "Frames, or raw bytes; None where an item failed or had a buffer of its own.")
      .def_prop_ro(
          "sizes", [](const BatchResult& self) { return self.sizes; },
          nb::for_getter(nb::sig("def sizes(self) -> list[int]")),
          "Bytes of the frame, or raw bytes; 0 for failures.")
      .def_prop_ro(
          "status", [](const BatchResult& self) { return self.status; },
          nb::for_getter(nb::sig("def status(self) -> list[int]")),
          "0, or -N where explain(N) says what was found.")
      .def_prop_ro(
          "ok",
          [](const BatchResult& self) {
            for (nb::handle status : self.status) {
              if (nb::cast<int>(status) != 0) return false;
            }
            return true;
          },
          "Whether no item failed.")
      .def("__len__", [](const BatchResult& self) { return nb::len(self.status); });
}

}  // namespace kvtool_python
