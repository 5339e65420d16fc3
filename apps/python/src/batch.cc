// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <deque>
#include <optional>
#include <vector>

#include "apps/python/src/context.h"

namespace kvtool_python {
namespace {

// Everything that the items of one batch point to. It grows item by item, so that a sequence which
// lies about its length takes no memory.
class Batch {
 public:
  size_t count() const { return items_.size(); }
  std::span<kvt_item> items() { return items_; }
  kvt_item& Add() {
    pieces_.emplace_back();
    kvt_item& item = items_.emplace_back(kvt_item{});
    item.struct_size = sizeof item;
    return item;
  }
  // Describes the last item.
  void AddDescription(const kvt_desc& desc) { items_.back().desc = &descs_.emplace_back(desc); }

  // The pieces of the last item: one buffer, or a list or tuple of them. Bytes and memory that can
  // be iterated are one piece.
  std::vector<const Buffer*> SetPieces(nb::handle object, Buffer::Access access) {
    std::vector<const Buffer*> buffers;
    if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
      const Sequence list(object, "pieces");
      for (size_t i = 0; i < list.size(); ++i) buffers.push_back(&AddBuffer(list[i], access));
    } else {
      buffers.push_back(&AddBuffer(object, access));
    }
    std::vector<kvt_piece> pieces;
    for (const Buffer* buffer : buffers) pieces.push_back(PieceOf(buffer->data(), buffer->bytes()));
    SetPieces(std::move(pieces));
    return buffers;
  }
  void SetPieces(std::vector<kvt_piece> pieces) {
    for (const kvt_piece& piece : pieces) raw_bytes_ += piece.bytes;
    pieces_.back() = std::move(pieces);
    items_.back().pieces = pieces_.back().data();
    items_.back().piece_count = pieces_.back().size();
  }
  const Buffer& AddBuffer(nb::handle object, Buffer::Access access) {
    return buffers_.emplace_back(object, access);
  }
  static kvt_piece PieceOf(void* data, size_t bytes) { return {sizeof(kvt_piece), 0, data, bytes}; }
  static void SetFrame(kvt_item& item, void* data, size_t bytes) {
    item.frame = data;
    item.frame_bytes = bytes;
  }
  size_t PieceBytes(size_t index) const {
    size_t bytes = 0;
    for (const kvt_piece& piece : pieces_[index]) bytes += piece.bytes;
    return bytes;
  }
  size_t raw_bytes() const { return raw_bytes_; }

 private:
  std::vector<kvt_item> items_;
  std::deque<kvt_desc> descs_;
  std::deque<std::vector<kvt_piece>> pieces_;
  std::deque<Buffer> buffers_;
  size_t raw_bytes_ = 0;
};

// One entry for each item, or None.
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

// A call that none of the items is to blame for raises; what items failed of is theirs to say.
void RaiseUnlessOfItems(kvt_status status, kvt_ctx* ctx, std::span<const kvt_item> items) {
  if (status == 0) return;
  for (const kvt_item& item : items) {
    if (item.status == status) return;
  }
  RaiseIfFailed(status, ctx);
}

}  // namespace

nb::object EncodeBatch(kvt_ctx* ctx, nb::handle objects, const DescriptionArguments& common,
                       nb::handle contexts, nb::handle tags, nb::handle outs) {
  Batch batch;
  const Sequence given(objects, "objects");
  const Entries context_entries(contexts, given.size(), "contexts");
  const Entries tag_entries(tags, given.size(), "tags");
  const Entries out_entries(outs, given.size(), "outs");
  std::vector<size_t> offsets;  // of frames in the room
  size_t room_bytes = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    const nb::object object = given[i];
    const nb::object context = context_entries.Get(i, nb::none()),
                     tag = tag_entries.Get(i, common.tag);
    kvt_item& item = batch.Add();
    const std::vector<const Buffer*> pieces = batch.SetPieces(object, Buffer::Access::kRead);
    DescriptionArguments own = common;
    own.context = context;
    own.tag = tag;
    batch.AddDescription(Describe(own, pieces));
    offsets.push_back(room_bytes);
    if (!out_entries.given()) {
      room_bytes += kvt_encode_bound(batch.PieceBytes(i));
    } else {
      const Buffer& out = batch.AddBuffer(out_entries.Get(i, nb::none()), Buffer::Access::kWrite);
      Batch::SetFrame(item, out.data(), out.bytes());
    }
  }
  const Room room(room_bytes);
  for (size_t i = 0; !out_entries.given() && i < batch.count(); ++i) {
    Batch::SetFrame(batch.items()[i], room.data() + offsets[i],
                    kvt_encode_bound(batch.PieceBytes(i)));
  }
  const kvt_status status = RunCall(ctx, batch.raw_bytes(), [&] {
    return kvt_encode_batch(ctx, batch.items().data(), batch.count());
  });
  RaiseUnlessOfItems(status, ctx, batch.items());
  BatchResult result;
  for (size_t i = 0; i < batch.count(); ++i) {
    const kvt_item& item = batch.items()[i];
    const bool whole = item.status == 0 && !out_entries.given();
    result.objects.append(whole ? room.Bytes(offsets[i], item.written) : nb::object(nb::none()));
    result.sizes.append(item.status == 0 ? item.written : 0);
    result.status.append(item.status);
  }
  return result.ForPython();
}

nb::object DecodeBatch(kvt_ctx* ctx, nb::handle frames, nb::handle contexts, nb::handle outs) {
  Batch batch;
  const Sequence given(frames, "frames");
  const Entries context_entries(contexts, given.size(), "contexts");
  const Entries out_entries(outs, given.size(), "outs");
  std::vector<nb::object> raws;
  std::vector<kvt_status> refused;
  for (size_t i = 0; i < given.size(); ++i) {
    kvt_item& item = batch.Add();
    const Buffer& frame = batch.AddBuffer(given[i], Buffer::Access::kRead);
    Batch::SetFrame(item, frame.data(), frame.bytes());
    const nb::object context = context_entries.Get(i, nb::none());
    if (!context.is_none()) {
      kvt_desc desc = {};
      desc.struct_size = sizeof(kvt_desc);
      desc.dtype = KVT_U8;
      desc.order = KVT_ORDER_UNKNOWN;
      ParseContext(context, desc.context);
      batch.AddDescription(desc);
    }
    raws.emplace_back();
    refused.push_back(0);
    if (out_entries.given()) {
      batch.SetPieces(out_entries.Get(i, nb::none()), Buffer::Access::kWrite);
      continue;
    }
    // What cannot be read, or claims more than its bytes hold, gets no memory.
    kvt_info info = {};
    info.struct_size = sizeof info;
    refused[i] = kvt_frame_info(frame.data(), frame.bytes(), &info);
    if (refused[i] == 0) refused[i] = CheckClaim(ctx, frame, info);
    const uint64_t raw_bytes = refused[i] == 0 ? info.raw_bytes : 0;
    raws[i] = NewBytes(raw_bytes);
    batch.SetPieces({Batch::PieceOf(BytesData(raws[i]), raw_bytes)});
  }
  const kvt_status status = RunCall(ctx, batch.raw_bytes(), [&] {
    return kvt_decode_batch(ctx, batch.items().data(), batch.count());
  });
  RaiseUnlessOfItems(status, ctx, batch.items());
  BatchResult result;
  for (size_t i = 0; i < batch.count(); ++i) {
    kvt_item& item = batch.items()[i];
    if (refused[i] != 0) item.status = refused[i];
    result.objects.append(item.status == 0 && raws[i].is_valid() ? raws[i]
                                                                 : nb::object(nb::none()));
    result.sizes.append(item.status == 0 ? item.written : 0);
    result.status.append(item.status);
  }
  return result.ForPython();
}

}  // namespace kvtool_python
