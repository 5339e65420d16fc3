// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <optional>

#include "apps/python/src/context.h"

namespace kvtool_python {
namespace {

// Reads one entry for each item, or None.
class Entries {
 public:
  Entries(nb::handle given, size_t count, const char* what) {
    if (given.is_none()) return;
    sequence_.emplace(given, what);
    if (sequence_->size() == count) return;
    throw nb::value_error(
        (std::string(what) + ": expected one for each of the " + std::to_string(count) + " items")
            .c_str());
  }
  bool given() const { return sequence_.has_value(); }
  nb::object Get(size_t index, nb::handle otherwise) const {
    return given() ? (*sequence_)[index] : nb::borrow(otherwise);
  }

 private:
  std::optional<Sequence> sequence_;
};

kvt_item& AddItem(Batch& batch) {
  batch.pieces.emplace_back();
  kvt_item& item = batch.items.emplace_back(kvt_item{});
  item.struct_size = sizeof item;
  return item;
}

void AddPiece(Batch& batch, void* data, size_t bytes) {
  std::vector<kvt_piece>& pieces = batch.pieces.back();
  pieces.push_back({sizeof(kvt_piece), 0, data, bytes});
  batch.raw_bytes += bytes;
  batch.items.back().pieces = pieces.data();
  batch.items.back().piece_count = pieces.size();
}

// Adds the pieces of the last item: one buffer, or a list or tuple of them. Bytes, and memory that
// can be iterated, are one piece.
std::vector<const Buffer*> AddPieces(Batch& batch, nb::handle object, Buffer::Access access) {
  std::vector<const Buffer*> added;
  const auto add = [&](nb::handle piece) {
    const Buffer& buffer = batch.buffers.emplace_back(piece, access);
    AddPiece(batch, buffer.data(), buffer.bytes());
    added.push_back(&buffer);
  };
  if (!PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr())) {
    add(object);
    return added;
  }
  const Sequence list(object, "pieces");
  for (size_t i = 0; i < list.size(); ++i) add(list[i]);
  return added;
}

size_t ComputeBound(const Batch& batch, size_t index) {
  size_t bytes = 0;
  for (const kvt_piece& piece : batch.pieces[index]) bytes += piece.bytes;
  return kvt_encode_bound(bytes);
}

}  // namespace

std::unique_ptr<Batch> Batch::OfObjects(nb::handle objects, const DescriptionArguments& common,
                                        nb::handle contexts, nb::handle tags, nb::handle outs) {
  auto batch = std::make_unique<Batch>();
  const Sequence given(objects, "objects");
  const Entries context_entries(contexts, given.size(), "contexts");
  const Entries tag_entries(tags, given.size(), "tags");
  const Entries out_entries(outs, given.size(), "outs");
  size_t room_bytes = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    const nb::object object = given[i];
    const nb::object context = context_entries.Get(i, nb::none()),
                     tag = tag_entries.Get(i, common.tag);
    kvt_item& item = AddItem(*batch);
    DescriptionArguments own = common;
    own.context = context;
    own.tag = tag;
    const std::vector<const Buffer*> pieces = AddPieces(*batch, object, Buffer::Access::kRead);
    item.desc = &batch->descs.emplace_back(Describe(own, pieces));
    if (out_entries.given()) {
      const Buffer& out =
          batch->buffers.emplace_back(out_entries.Get(i, nb::none()), Buffer::Access::kWrite);
      item.frame = out.data();
      item.frame_bytes = out.bytes();
    } else {
      batch->offsets.push_back(room_bytes);
      room_bytes += ComputeBound(*batch, i);
    }
  }
  if (out_entries.given()) return batch;
  batch->room.emplace(room_bytes);
  for (size_t i = 0; i < batch->items.size(); ++i) {
    batch->items[i].frame = batch->room->data() + batch->offsets[i];
    batch->items[i].frame_bytes = ComputeBound(*batch, i);
  }
  return batch;
}

std::unique_ptr<Batch> Batch::OfFrames(kvt_ctx* ctx, nb::handle frames, nb::handle contexts,
                                       nb::handle outs) {
  auto batch = std::make_unique<Batch>();
  batch->encodes = false;
  const Sequence given(frames, "frames");
  const Entries context_entries(contexts, given.size(), "contexts");
  const Entries out_entries(outs, given.size(), "outs");
  for (size_t i = 0; i < given.size(); ++i) {
    kvt_item& item = AddItem(*batch);
    const Buffer& frame = batch->buffers.emplace_back(given[i], Buffer::Access::kRead);
    item.frame = frame.data();
    item.frame_bytes = frame.bytes();
    const nb::object context = context_entries.Get(i, nb::none());
    if (!context.is_none()) {
      kvt_desc& desc = batch->descs.emplace_back();
      desc.struct_size = sizeof(kvt_desc);
      desc.dtype = KVT_U8;
      desc.order = KVT_ORDER_UNKNOWN;
      ParseContext(context, desc.context);
      item.desc = &desc;
    }
    if (out_entries.given()) {
      AddPieces(*batch, out_entries.Get(i, nb::none()), Buffer::Access::kWrite);
      continue;
    }
    // A frame that cannot be read, or claims more than its bytes can hold, gets no memory.
    kvt_info info = {};
    info.struct_size = sizeof info;
    kvt_status refused = kvt_frame_info(frame.data(), frame.bytes(), &info);
    if (refused == 0) refused = CheckClaim(ctx, frame, info);
    const uint64_t raw_bytes = refused == 0 ? info.raw_bytes : 0;
    batch->refused.push_back(refused);
    batch->raws.push_back(NewBytes(raw_bytes));
    AddPiece(*batch, BytesData(batch->raws[i]), raw_bytes);
  }
  return batch;
}

nb::object Batch::Result(kvt_status of_all) {
  nb::list objects, sizes, statuses;
  for (size_t i = 0; i < items.size(); ++i) {
    kvt_item& item = items[i];
    if (of_all != 0) item.status = of_all;
    if (!refused.empty() && refused[i] != 0) item.status = refused[i];
    nb::object whole = nb::none();
    if (item.status == 0 && room) whole = room->Bytes(offsets[i], item.written);
    if (item.status == 0 && !raws.empty()) whole = raws[i];
    objects.append(whole);
    sizes.append(item.status == 0 ? item.written : 0);
    statuses.append(item.status);
  }
  return nb::module_::import_("kvtool._batch").attr("BatchResult")(objects, sizes, statuses);
}

nb::object RunBatch(kvt_ctx* ctx, Batch& batch) {
  const auto call = batch.encodes ? kvt_encode_batch : kvt_decode_batch;
  const kvt_status status = RunCall(
      ctx, batch.raw_bytes, [&] { return call(ctx, batch.items.data(), batch.items.size()); });
  // Raises for a status that concerns the whole batch; failures of items are reported in the
  // result.
  const auto has_it = [&](const kvt_item& item) { return item.status == status; };
  if (status != 0 && std::ranges::none_of(batch.items, has_it)) RaiseIfFailed(status, ctx);
  return batch.Result(0);
}

Queue::Queue(const Context& context, uint32_t threads, uint32_t depth) : ctx_(context.get()) {
  const kvt_queue_params params = {sizeof params, threads, depth, 0};
  kvt_queue* queue = nullptr;
  RaiseIfFailed(kvt_queue_create(ctx_.get(), &params, &queue), ctx_.get());
  queue_.reset(queue);
}

uint64_t Queue::Submit(std::unique_ptr<Batch> batch) {
  if (!queue_) throw nb::value_error("the queue is closed");
  kvt_batch given = {};
  given.struct_size = sizeof given;
  given.operation = batch->encodes ? KVT_ENCODE_ITEMS : KVT_DECODE_ITEMS;
  given.items = batch->items.data();
  given.count = batch->items.size();
  uint64_t ticket = 0;
  RaiseIfFailed(kvt_queue_submit(queue_.get(), &given, &ticket), nullptr);
  outstanding_.emplace(ticket, std::move(batch));
  return ticket;
}

nb::list Queue::Poll() {
  nb::list done;
  std::vector<kvt_completion> completions(16);
  for (size_t count = 1; queue_ && count != 0;) {
    completions[0].struct_size = sizeof completions[0];
    RaiseIfFailed(kvt_queue_poll(queue_.get(), completions.data(), completions.size(), &count),
                  nullptr);
    for (const kvt_completion& completion : std::span(completions).first(count)) {
      const auto found = outstanding_.extract(completion.ticket);
      const bool whole = completion.failed == UINT64_MAX;
      done.append(
          nb::make_tuple(completion.ticket, found.mapped()->Result(whole ? completion.status : 0)));
    }
  }
  return done;
}

void Queue::Close() {
  {
    const nb::gil_scoped_release released;
    queue_.reset();  // its threads have released all batches
  }
  outstanding_.clear();
}

}  // namespace kvtool_python
