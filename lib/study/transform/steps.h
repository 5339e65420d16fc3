// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/transform/transform.h"
#include "lib/study/transform/form.h"

// The form kvtc_rans: one step for all components of a matrix, no scales, and a static table of
// symbols for each component, which rANS codes by.
namespace kv::transform {

inline constexpr int32_t kMostSymbol = 63;                 // larger symbols are escaped
inline constexpr uint32_t kSymbols = 2 * kMostSymbol + 3;  // -64 and 64 both mark an escape
inline constexpr uint32_t kEscapeBits = 16;

// Returns the symbol of a coefficient, without limit.
float ToSymbol(float value, float step);
// Returns the bits of each symbol from -64 to 64 of a component: from counts of these values plus
// 40 pseudo-counts, half from a Gaussian and half from a Laplacian of their deviation.
std::array<double, kSymbols> SymbolBits(std::span<const float> values, float step);

StepTable MakeStepTable(std::span<const float> values, float step);

// Returns the smallest step whose tables, learnt from `learn`, code the rows of `judge` within the
// budget of bits a token.
StepCode FitSteps(const Rows& learn, const Rows& judge, double budget_bits);

// Writes the decoded values of a block of at most kStreamTokens, and returns the bytes of its
// codes: rANS words, the states of its lanes and escapes. Symbols beyond 16 bits are clipped and
// counted.
uint64_t StoreBlock(const StepCode& code, const Rows& rows, std::span<float> out, Faults& faults);

}  // namespace kv::transform
