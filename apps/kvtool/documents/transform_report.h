// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/core/transform/transform.h"
#include "lib/fields/fields.h"

namespace kv {

// Returns storage and origin of a basis, for every document that names a transform.
const Fields<Transform>& BasisFields();
// Returns a learnt transform (.kvx) as documents and the console show it.
const Fields<Transform>& TransformFields();
// Returns "transform of smollm2, 30 layers, 1024 + 1024 components learnt from 15300 tokens".
std::string TransformSummary(const Transform& transform);
// Returns the summary, what stays in full, and a table of the forms and ratios.
std::string TransformText(const Transform& transform);

}  // namespace kv
