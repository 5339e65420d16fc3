// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/dtype.h"
#include "lib/core/base/file.h"
#include "tests/support/memory_source.h"

namespace kv::test {

// Writes llama.cpp states by the grammar of formats/llama_state/FORMAT.md, one value at a time and
// independently of the reader. Fields can be set to nonsense.
struct LlamaState {
  struct Cell {
    int32_t position = 0;
    std::vector<int32_t> sequences = {0};
  };
  struct Cache {
    uint32_t layers = 2;
    int32_t k_type = 1, v_type = 1;  // ggml numbers: f16
    uint64_t k_row = 16, v_row = 16;
    bool has_v = true;
    uint32_t transposed = 0, v_element = 2;
    std::vector<std::vector<Cell>> streams = {{{0}, {1}, {2}}};
  };

  bool is_session = false;
  uint32_t version = 3;
  bool has_streams = true, has_outputs = false;
  uint32_t extension = 0;
  std::vector<int32_t> tokens = {5, 6, 7};
  std::string architecture = "llama";
  std::vector<Cache> caches = {Cache{}};

  // 16-bit value of one element, the same however it is stored.
  static uint16_t Value(uint32_t layer, bool is_value, uint64_t cell, uint64_t element) {
    return static_cast<uint16_t>(0x3000 + 4096 * layer + 2048 * is_value + 64 * cell + element);
  }

  // Marks holds the offsets of the parts that tests damage.
  struct Marks {
    uint64_t body = 0;  // first cache
    std::vector<uint64_t> k_ends;
  };

  Bytes Write(Marks* marks = nullptr) const {
    ByteWriter out;
    out.U32(is_session ? 0x6767736e : 0x67677371);
    out.U32(version);
    out.U32(static_cast<uint32_t>(tokens.size()));
    for (int32_t token : tokens) out.I32(token);
    if (is_session) {
      out.U32(static_cast<uint32_t>(architecture.size()));
      out.Append(architecture);
    }
    if (is_session && has_outputs) {
      out.U32(1);
      out.I32(0);
      out.U64(4);
      out.Pad(16, std::byte{0x3f});
      out.U64(0);
    }
    if (marks != nullptr) marks->body = out.size();
    for (const Cache& cache : caches) {
      if (has_streams) out.U32(static_cast<uint32_t>(cache.streams.size()));
      for (const std::vector<Cell>& cells : cache.streams) WriteStream(out, cache, cells, marks);
    }
    return out.Release();
  }

 private:
  void WriteStream(ByteWriter& out, const Cache& cache, const std::vector<Cell>& cells,
                   Marks* marks) const {
    out.U32(static_cast<uint32_t>(cells.size()));
    if (cells.empty() && has_streams) return;
    for (const Cell& cell : cells) {
      out.I32(cell.position);
      out.U32(static_cast<uint32_t>(cell.sequences.size()));
      out.Pad(extension, std::byte{9});
      for (int32_t id : cell.sequences) out.I32(id);
    }
    out.U32(cache.transposed);
    out.U32(cache.layers);
    for (uint32_t layer = 0; layer < cache.layers; ++layer) {
      out.I32(cache.k_type);
      out.U64(cache.k_row);
      for (uint64_t cell = 0; cell < cells.size(); ++cell) {
        for (uint64_t e = 0; e < cache.k_row / 2; ++e) out.U16(Value(layer, false, cell, e));
      }
    }
    if (marks != nullptr) marks->k_ends.push_back(out.size());
    if (!cache.has_v) return;
    for (uint32_t layer = 0; layer < cache.layers; ++layer) {
      out.I32(cache.v_type);
      if (cache.transposed != 0) {
        out.U32(cache.v_element);
        out.U32(static_cast<uint32_t>(cache.v_row / 2));
        for (uint64_t e = 0; e < cache.v_row / 2; ++e) {
          for (uint64_t cell = 0; cell < cells.size(); ++cell) out.U16(Value(layer, true, cell, e));
        }
      } else {
        out.U64(cache.v_row);
        for (uint64_t cell = 0; cell < cells.size(); ++cell) {
          for (uint64_t e = 0; e < cache.v_row / 2; ++e) out.U16(Value(layer, true, cell, e));
        }
      }
    }
  }
};

}  // namespace kv::test
