// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/key_floats.h"

#include <algorithm>
#include <cmath>

#include "lib/core/kernels/convert.h"

namespace kv::eviction {

std::vector<float> FloatKeys(const LayerAttention& attention, std::span<const uint32_t> positions,
                             uint32_t kv_head) {
  const size_t dim = attention.head_dim();
  std::vector<float> out(positions.size() * dim);
  std::vector<std::byte> row(attention.key_bytes());
  for (size_t j = 0; j < positions.size(); ++j) {
    attention.GatherKeys(kv_head, positions[j], 1, row.data());
    float* to = out.data() + j * dim;
    switch (attention.key_type()) {
      case KeyType::kF16:
        HalfToFloat(row.data(), to, dim);
        break;
      case KeyType::kBF16:
        BFloatToFloat(row.data(), to, dim);
        break;
      case KeyType::kF32:
        std::copy_n(reinterpret_cast<const std::byte*>(row.data()), row.size(),
                    reinterpret_cast<std::byte*>(to));
        break;
    }
  }
  return out;
}

double Norm(const float* row, size_t dim) {
  double sum = 0;
  for (size_t i = 0; i < dim; ++i) sum += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return std::sqrt(sum);
}

}  // namespace kv::eviction
