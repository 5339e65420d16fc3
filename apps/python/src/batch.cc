// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <deque>
#include <vector>

#include "apps/python/src/context.h"

namespace kvtool_python {
namespace {

nb::object At(nb::handle sequence, size_t index) {
  return nb::steal(PySequence_GetItem(sequence.ptr(), static_cast<Py_ssize_t>(index)));
}

// Everything that the items of one batch point to.
class Batch {
 public:
  explicit Batch(size_t count)
      : items_(count, kvt_item{}), descs_(count, kvt_desc{}), pieces_(count) {}

  size_t count() const { return items_.size(); }
  std::span<kvt_item> items() { return items_; }
  kvt_desc& desc(size_t index) { return descs_[index]; }

  // One buffer, or a list or tuple of them; nullptr: an object in several pieces. Bytes and memory
  // that merely can be iterated are one piece.
  const Buffer* SetPieces(size_t index, nb::handle object, Buffer::Access access) {
    auto& pieces = pieces_[index];
    const Buffer* only = nullptr;
    const auto add = [&](nb::handle piece) {
      const Buffer& buffer = buffers_.emplace_back(piece, access);
      pieces.push_back({buffer.data(), buffer.bytes()});
      raw_bytes_ += buffer.bytes();
      return &buffer;
    };
    if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
      for (nb::handle piece : nb::borrow(object)) add(piece);
    } else {
      only = add(object);
    }
    items_[index].pieces = pieces.data();
    items_[index].piece_count = pieces.size();
    return only;
  }
  void SetPiece(size_t index, void* data, size_t bytes) {
    pieces_[index] = {{data, bytes}};
    raw_bytes_ += bytes;
    items_[index].pieces = pieces_[index].data();
    items_[index].piece_count = 1;
  }
  const Buffer& AddBuffer(nb::handle object, Buffer::Access access) {
    return buffers_.emplace_back(object, access);
  }
  void SetFrame(size_t index, void* data, size_t bytes) {
    items_[index].frame = data;
    items_[index].frame_bytes = bytes;
  }
  size_t PieceBytes(size_t index) const {
    size_t bytes = 0;
    for (const kvt_piece& piece : pieces_[index]) bytes += piece.bytes;
    return bytes;
  }
  size_t raw_bytes() const { return raw_bytes_; }

 private:
  std::vector<kvt_item> items_;
  std::vector<kvt_desc> descs_;
  std::vector<std::vector<kvt_piece>> pieces_;
  std::deque<Buffer> buffers_;
  size_t raw_bytes_ = 0;
};

void RequireCount(nb::handle sequence, size_t count, const char* what) {
  if (sequence.is_none() || nb::len(sequence) == count) return;
  throw nb::value_error(
      (std::string(what) + ": expected one for each of the " + std::to_string(count) + " items")
          .c_str());
}

// A call that none of the items is to blame for raises; what items failed of is theirs to say.
void RaiseUnlessOfItems(kvt_status status, kvt_ctx* ctx, std::span<const kvt_item> items) {
  if (status == 0) return;
  for (const kvt_item& item : items) {
    if (item.status == status) return;
  }
  RaiseIfFailed(status, ctx);
}

}  // namespace

BatchResult EncodeBatch(kvt_ctx* ctx, nb::handle objects, const DescriptionArguments& common,
                        nb::handle contexts, nb::handle tags, nb::handle outs) {
  Batch batch(nb::len(objects));
  RequireCount(contexts, batch.count(), "contexts");
  RequireCount(tags, batch.count(), "tags");
  RequireCount(outs, batch.count(), "outs");
  std::vector<size_t> offsets(batch.count());  // of frames in the room
  size_t room_bytes = 0;
  for (size_t i = 0; i < batch.count(); ++i) {
    const nb::object object = At(objects, i);
    const Buffer* only = batch.SetPieces(i, object, Buffer::Access::kRead);
    DescriptionArguments own = common;
    const nb::object context = contexts.is_none() ? nb::none() : At(contexts, i);
    const nb::object tag = tags.is_none() ? nb::borrow(common.tag) : At(tags, i);
    own.context = context;
    own.tag = tag;
    batch.desc(i) = Describe(own, only);
    batch.items()[i].desc = &batch.desc(i);
    if (outs.is_none()) {
      offsets[i] = room_bytes;
      room_bytes += kvt_encode_bound(batch.PieceBytes(i));
    } else {
      const Buffer& out = batch.AddBuffer(At(outs, i), Buffer::Access::kWrite);
      batch.SetFrame(i, out.data(), out.bytes());
    }
  }
  const Room room(room_bytes);
  for (size_t i = 0; outs.is_none() && i < batch.count(); ++i) {
    batch.SetFrame(i, room.data() + offsets[i], kvt_encode_bound(batch.PieceBytes(i)));
  }
  const kvt_status status = RunCall(ctx, batch.raw_bytes(), [&] {
    return kvt_encode_batch(ctx, batch.items().data(), batch.count(), sizeof(kvt_item));
  });
  RaiseUnlessOfItems(status, ctx, batch.items());
  BatchResult result;
  for (size_t i = 0; i < batch.count(); ++i) {
    const kvt_item& item = batch.items()[i];
    const bool whole = item.status == 0 && outs.is_none();
    result.objects.append(whole ? room.Bytes(offsets[i], item.written) : nb::object(nb::none()));
    result.sizes.append(item.status == 0 ? item.written : 0);
    result.status.append(item.status);
  }
  return result;
}

BatchResult DecodeBatch(kvt_ctx* ctx, nb::handle frames, nb::handle contexts, nb::handle outs) {
  Batch batch(nb::len(frames));
  RequireCount(contexts, batch.count(), "contexts");
  RequireCount(outs, batch.count(), "outs");
  std::vector<nb::object> raws(batch.count());
  std::vector<kvt_status> refused(batch.count(), 0);
  for (size_t i = 0; i < batch.count(); ++i) {
    const Buffer& frame = batch.AddBuffer(At(frames, i), Buffer::Access::kRead);
    batch.SetFrame(i, frame.data(), frame.bytes());
    const nb::object context = contexts.is_none() ? nb::none() : At(contexts, i);
    if (!context.is_none()) {
      batch.desc(i).struct_size = sizeof(kvt_desc);
      batch.desc(i).dtype = KVT_U8;
      batch.desc(i).order = KVT_ORDER_UNKNOWN;
      ParseContext(context, batch.desc(i).context);
      batch.items()[i].desc = &batch.desc(i);
    }
    if (!outs.is_none()) {
      batch.SetPieces(i, At(outs, i), Buffer::Access::kWrite);
      continue;
    }
    // What cannot be read, or claims more than its bytes hold, gets no memory.
    kvt_info info = {};
    info.struct_size = sizeof info;
    refused[i] = kvt_frame_info(frame.data(), frame.bytes(), &info);
    if (refused[i] == 0) refused[i] = CheckClaim(ctx, frame, info);
    raws[i] = NewBytes(refused[i] == 0 ? info.raw_bytes : 0);
    batch.SetPiece(i, BytesData(raws[i]), refused[i] == 0 ? info.raw_bytes : 0);
  }
  const kvt_status status = RunCall(ctx, batch.raw_bytes(), [&] {
    return kvt_decode_batch(ctx, batch.items().data(), batch.count(), sizeof(kvt_item));
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
  return result;
}

}  // namespace kvtool_python
