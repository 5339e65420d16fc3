// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/context.h"
#include "apps/python/src/snapshots.h"

// The names of kvtool._kvtool. Signatures and docstrings are written only here: the stub is
// generated from them.
#define FRAME_KEYWORDS                                                         \
  nb::kw_only(), nb::arg("dtype") = nb::none(), nb::arg("shape") = nb::none(), \
                 nb::arg("order") = "token_head_dim", nb::arg("role") = "unknown"

namespace kvtool_python {
namespace {

DescriptionArguments Arguments(nb::handle dtype, nb::handle shape, nb::handle order,
                               nb::handle role, nb::handle tag, nb::handle context) {
  return {dtype, shape, order, role, tag, context};
}

// Parts that a method of Context and a function of the module share.
constexpr char kEncodeDoc[] =
    R"(Compress one page, chunk or tensor into a frame that is complete in itself.

data: any contiguous memory: bytes, memoryview, a NumPy array (ml_dtypes too), a tensor on the CPU.
dtype: type of the values, if the object does not state it: "bf16", "f16", ...; integers of two bytes count as bf16. A
    type that frames do not have is a TypeError; "u8" keeps their bytes alone.
shape: in values, (tokens, heads, head_dim) in the order given; the array's own by default. Axes before the last
    three count as tokens; with two axes there is one head. A shape that does not fit is dropped.
order: "token_head_dim" or "head_token_dim"; "unknown" for none.
role: "k", "v", "kv" (side by side in each head) or "unknown".
tag: a number of the caller's own. context: 16 bytes that name model, layer and tokens (hash128); decoding checks them.
out: a writable buffer of bound(len(data)) bytes; then the size of the frame is returned.

Only context is checked when the frame is decoded: a wrong dtype or shape costs compression and nothing else.)";

constexpr char kDecodeDoc[] =
    R"(The raw bytes of a frame, checked against the hash in its header.

frame: bytes after the frame are ignored.
context: 16 bytes that the frame must carry; None: not checked.
out: a writable buffer of exactly the raw size, filled; then that size is returned. After an error it holds garbage.)";

constexpr char kDecodeTokensDoc[] =
    R"(Tokens [begin, begin + count) alone, as [token][head][dim], checked by the hashes of the segments they lie in.

Possible where frame_info(frame)["segment_tokens"] is not 0; otherwise KV1302.)";

constexpr char kEncodeBatchDoc[] =
    R"(Compress many objects in one call, spread over the context's threads.

objects: one entry per object: a buffer, or a list or tuple of buffers (pieces) that together are one object, in order.
contexts, tags, outs: None, or one entry per object. dtype, shape, order and role hold for all; an object in pieces has
    the shape given or none, and without dtype the type of its pieces, which have to agree.
outs: writable buffers of bound(raw bytes) bytes each; then result.objects holds None.

Failures are values in result.status; one bad object changes no other.)";

constexpr char kDecodeBatchDoc[] =
    R"(Decode many frames in one call, spread over the context's threads.

contexts: None, or per frame 16 bytes to be checked, or None.
outs: None, or per frame a writable buffer, or a list or tuple of writable buffers that are filled in order.

Failures are values in result.status; the output of a failed frame holds garbage.)";

// The context that a call uses: the object's own, or that of the calling thread. It lives until the
// call has returned, even if another thread closes the object.
std::shared_ptr<kvt_ctx> ContextFor(const Context& self) { return self.get(); }
std::shared_ptr<kvt_ctx> ContextFor() { return ContextOfThread(KVT_DEFAULT); }
std::shared_ptr<kvt_ctx> ContextFor(nb::handle level) { return ContextOfThread(ParseLevel(level)); }

template <typename...>
struct Pack {};

// Binds encoding as methods of Context, which have `Self` (`self` in signatures), or as functions
// of the module, which have the keyword `Level` (`level` in signatures) and `extra` keywords.
template <typename... Self, typename... Level, typename Owner>
void BindEncoding(Pack<Self...>, Pack<Level...>, Owner& owner, const std::string& self,
                  const std::string& level, const auto&... extra) {
  using H = nb::handle;
  const std::string keywords = "*, " + level +
                               "dtype: DType = None, shape: Shape = None, order: str = "
                               "\"token_head_dim\", role: str = \"unknown\", ";
  const auto bind = [&](const char* name, const char* first, const std::string& rest, auto call,
                        const auto&... more) {
    const std::string sig = "def " + (name + ("(" + self)) + first + ", " + keywords + rest;
    owner.def(name, call, nb::arg(std::string_view(first).starts_with("data") ? "data" : "objects"),
              FRAME_KEYWORDS, more..., extra..., nb::sig(sig.c_str()));
  };
  const auto tag = nb::arg("tag") = 0;
  const auto context = nb::arg("context") = nb::none();
  bind(
      "encode", "data: Readable", "tag: int = 0, context: Key = None) -> bytes",
      [](Self... in, H data, H dtype, H shape, H order, H role, H tag, H context, Level... level) {
        return Encode(ContextFor(in..., level...).get(), data,
                      Arguments(dtype, shape, order, role, tag, context));
      },
      tag, context, kEncodeDoc);
  bind(
      "encode", "data: Readable", "tag: int = 0, context: Key = None, out: Writable) -> int",
      [](Self... in, H data, H dtype, H shape, H order, H role, H tag, H context, H out,
         Level... level) {
        return EncodeInto(ContextFor(in..., level...).get(), data,
                          Arguments(dtype, shape, order, role, tag, context), out);
      },
      tag, context, nb::arg("out"));
  bind(
      "encode_batch", "objects: Sequence[Pieces]",
      "contexts: Sequence[Key] | None = None, tags: Sequence[int] | None = None, outs: "
      "Sequence[Writable] | None = None) -> BatchResult",
      [](Self... in, H objects, H dtype, H shape, H order, H role, H contexts, H tags, H outs,
         Level... level) {
        const auto batch =
            Batch::OfObjects(objects, Arguments(dtype, shape, order, role, nb::int_(0), nb::none()),
                             contexts, tags, outs);
        return RunBatch(ContextFor(in..., level...).get(), *batch);
      },
      nb::arg("contexts") = nb::none(), nb::arg("tags") = nb::none(), nb::arg("outs") = nb::none(),
      kEncodeBatchDoc);
}

// Binds calls that methods of Context and functions of the module share. `Self` is the additional
// parameter of methods, and `self` its text in signatures.
template <typename... Self, typename Owner>
void BindDecoding(Owner& owner, const std::string& self) {
  using H = nb::handle;
  const auto bind = [&](const char* name, const std::string& rest, auto call,
                        const auto&... extra) {
    owner.def(name, call, extra..., nb::sig(("def " + (name + ("(" + self)) + rest).c_str()));
  };
  const nb::arg frame("frame"), begin("begin"), count("count"), out("out");
  const auto context = nb::arg("context") = nb::none();
  bind(
      "decode", "frame: Readable, *, context: Key = None) -> bytes",
      [](Self... in, H frame, H context) {
        return Decode(ContextFor(in...).get(), frame, context);
      },
      frame, nb::kw_only(), context, kDecodeDoc);
  bind(
      "decode", "frame: Readable, *, context: Key = None, out: Writable) -> int",
      [](Self... in, H frame, H context, H out) {
        return DecodeInto(ContextFor(in...).get(), frame, context, out);
      },
      frame, nb::kw_only(), context, out);
  bind(
      "decode_tokens", "frame: Readable, begin: int, count: int, *, context: Key = None) -> bytes",
      [](Self... in, H frame, uint64_t begin, uint64_t count, H context) {
        return DecodeTokens(ContextFor(in...).get(), frame, begin, count, context);
      },
      frame, begin, count, nb::kw_only(), context, kDecodeTokensDoc);
  bind(
      "decode_tokens",
      "frame: Readable, begin: int, count: int, *, context: Key = None, out: Writable) -> int",
      [](Self... in, H frame, uint64_t begin, uint64_t count, H context, H out) {
        return DecodeTokensInto(ContextFor(in...).get(), frame, begin, count, context, out);
      },
      frame, begin, count, nb::kw_only(), context, out);
  bind(
      "verify_frame", "frame: Readable, *, context: Key = None) -> None",
      [](Self... in, H frame, H context) { VerifyFrame(ContextFor(in...).get(), frame, context); },
      frame, nb::kw_only(), context,
      "Decode without an output, for scrubbers: raises Error unless all is well.");
  bind(
      "decode_batch",
      "frames: Sequence[Readable], *, contexts: Sequence[Key] | None = None, outs: "
      "Sequence[WritablePieces] | None = None) -> BatchResult",
      [](Self... in, H frames, H contexts, H outs) {
        const auto ctx = ContextFor(in...);
        return RunBatch(ctx.get(), *Batch::OfFrames(ctx.get(), frames, contexts, outs));
      },
      nb::arg("frames"), nb::kw_only(), nb::arg("contexts") = nb::none(),
      nb::arg("outs") = nb::none(), kDecodeBatchDoc);
}

void BindContext(nb::module_& m) {
  using H = nb::handle;
  nb::class_<Profile>(
      m, "Profile",
      R"(Statistics of one model's pages, learnt by train() or `kvtool train`: short pages coded with them
need no tables of their own.)")
      .def(
          "__init__", [](Profile* self, H file) { new (self) Profile(file); }, nb::arg("file"),
          nb::sig("def __init__(self, file: Readable) -> None"),
          "file: the bytes of a .kvp file; anything else raises KV1003 or another finding.")
      .def_prop_ro("hash", &Profile::hash, nb::for_getter(nb::sig("def hash(self) -> bytes")),
                   "16 bytes, by which frames and archives name it.");
  nb::class_<Context> context(
      m, "Context",
      R"(Level, threads and scratch memory for many calls. One call at a time: a second thread gets KV0007. cancel() and
stats() may be called beside a running call. As a context manager it is closed at the end.)");
  context
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
          R"(threads: the caller's included; 0: as many as the process may use. max_raw_bytes: larger objects are refused with
KV1014; 0: no limit. profile: frames are coded with it at levels from default on, wherever it makes them smaller;
such frames decode only with it.)")
      .def_prop_ro(
          "level", [](const Context& self) { return LevelName(self.level()); },
          "\"fast\" to \"max\".")
      .def_prop_ro("threads", &Context::threads, "As given.")
      .def_prop_ro("closed", &Context::closed, "Whether close() was called.")
      .def("close", &Context::Close,
           "Free threads and memory, once a running call has ended. Later calls raise ValueError.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Context"))
      .def(
          "__exit__", [](Context& self, nb::args) { self.Close(); },
          nb::sig("def __exit__(self, *_: object) -> None"))
      .def("__repr__", [](const Context& self) {
        return std::string("<kvtool.Context ") + LevelName(self.level()) + ", threads " +
               std::to_string(self.threads()) + (self.closed() ? ", closed>" : ">");
      });
  BindEncoding(Pack<Context&>{}, Pack<>{}, context, "self, ", "");
  BindDecoding<Context&>(context, "self, ");
  context
      .def(
          "stats", &Stats, nb::sig("def stats(self) -> dict[str, int]"),
          R"(Sums since creation: raw_bytes, stored_bytes, encode_ns, decode_ns, frames, stored_raw, decoded, refused. Any
thread.)")
      .def(
          "cancel", [](Context& self) { kvt_ctx_cancel(self.get().get()); },
          R"(Make the running call, if there is one, raise KV0008 within one segment. Any thread may call this.)");
}

void BindQueue(nb::module_& m) {
  using H = nb::handle;
  nb::class_<Queue>(m, "_Queue")
      .def(nb::init<const Context&, uint32_t, uint32_t>(), nb::arg("context"), nb::arg("threads"),
           nb::arg("depth"))
      .def(
          "encode",
          [](Queue& self, H objects, H dtype, H shape, H order, H role, H contexts, H outs) {
            return self.Submit(Batch::OfObjects(
                objects, Arguments(dtype, shape, order, role, nb::int_(0), nb::none()), contexts,
                nb::none(), outs));
          },
          nb::arg("objects"), FRAME_KEYWORDS, nb::arg("contexts"), nb::arg("outs").none(),
          nb::sig("def encode(self, objects: Sequence[Pieces], **arguments: Any) -> int"))
      .def(
          "decode",
          [](Queue& self, H frames, H contexts, H outs) {
            return self.Submit(Batch::OfFrames(self.ctx(), frames, contexts, outs));
          },
          nb::arg("frames"), nb::kw_only(), nb::arg("contexts"), nb::arg("outs").none(),
          nb::sig("def decode(self, frames: Sequence[Readable], **arguments: Any) -> int"))
      .def("poll", &Queue::Poll, nb::sig("def poll(self) -> list[tuple[int, BatchResult]]"))
      .def("fileno", &Queue::fileno)
      .def("close", &Queue::Close);
}

void BindFunctions(nb::module_& m) {
  using H = nb::handle;
  BindEncoding(Pack<>{}, Pack<H>{}, m, "", "level: Level = \"default\", ",
               nb::arg("level") = "default");
  BindDecoding(m, "");
  m.def(
      "estimate",
      [](H data, H levels, H dtype, H shape, H order, H role) {
        return Estimate(ContextFor().get(), data, levels,
                        Arguments(dtype, shape, order, role, nb::int_(0), nb::none()));
      },
      nb::arg("data"), nb::arg("levels") = nb::make_tuple("fast", "default", "high", "max"),
      FRAME_KEYWORDS,
      nb::sig("def estimate(data: Readable, levels: Sequence[Level] = (\"fast\", \"default\", "
              "\"high\", \"max\"), *, dtype: DType = None, shape: Shape = None, order: str = "
              "\"token_head_dim\", role: str = \"unknown\") -> list[dict[str, Any]]"),
      R"(Per level: level, ratio, encode_mb_s and decode_mb_s (one thread, here and now), from a sample of at most 64 KiB.
For choosing a level.)");
  m.def("_caps", &Caps, nb::sig("def _caps() -> dict[str, Any]"));
  m.def(
      "frame_info", &FrameInfo, nb::arg("frame"),
      nb::sig("def frame_info(frame: Readable) -> dict[str, Any]"),
      R"(The header of a frame, whose first 128 bytes suffice. Its sizes are claims until the frame is decoded.)");
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
        const bool is_text = nb::isinstance<nb::str>(data);
        const nb::object text =
            is_text ? nb::steal(PyUnicode_AsUTF8String(data.ptr())) : nb::none();
        if (!text.is_valid()) throw nb::python_error();
        const Buffer bytes(is_text ? nb::handle(text) : data, Buffer::Access::kRead);
        const auto hashed = [&] { return kvt_hash128(bytes.data(), bytes.bytes(), hash); };
        RaiseIfFailed(RunCall(nullptr, 0, hashed), nullptr);
        return nb::bytes(hash, sizeof hash);
      },
      nb::arg("data"), nb::sig("def hash128(data: Readable | str) -> bytes"),
      R"(XXH3-128 of bytes, or of a text in UTF-8, for use as a context. It detects accidents, not attacks.)");
}

}  // namespace
}  // namespace kvtool_python

NB_MODULE(_kvtool, m) {
  using namespace kvtool_python;
  // An engine exits while its threads still hold contexts; memory that a process does not free at
  // exit is no leak worth reporting.
  nb::set_leak_warnings(false);
  BindContext(m);
  BindQueue(m);
  BindFunctions(m);
  m.def(
      "_explain",
      [](int finding) {
        const kvt_status status = -finding;
        return nb::make_tuple(kvt_explain(status, KVT_EXPLAIN_ID),
                              kvt_explain(status, KVT_EXPLAIN_SENTENCE),
                              kvt_explain(status, KVT_EXPLAIN_PAGE), kvt_fault(status));
      },
      nb::arg("finding"), nb::sig("def _explain(finding: int) -> tuple[str, str, str, int]"));
  BindFiles(m);
  m.def(
      "_version", [] { return nb::make_tuple(kvt_version(), kvt_build()); },
      nb::sig("def _version() -> tuple[int, str]"));
}
