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

inline constexpr int32_t kMostSymbol = 63;                 // larger ones are escaped
inline constexpr uint32_t kSymbols = 2 * kMostSymbol + 3;  // -64 and 64 are both the escape
inline constexpr uint32_t kEscapeBits = 16;
inline constexpr uint64_t kBlockTokens = 128;  // whose codes are one stream

// The symbol of a coefficient, without a limit.
float SymbolOf(float value, float step);
// Bits of each symbol from -64 to 64 of a component: counts of these values, and as many as 40 of
// half a Gaussian and half a Laplacian of their deviation.
std::array<double, kSymbols> SymbolBits(std::span<const float> values, float step);

StepTable MakeStepTable(std::span<const float> values, float step);

// The smallest step whose tables, learnt from `learn`, code the rows of `judge` in no more bits a
// token than the budget.
StepCode FitSteps(const Rows& learn, const Rows& judge, double budget_bits);

// Writes what a block of at most kBlockTokens comes back as, and returns the bytes of its codes:
// rANS words, the states of its lanes and escapes. Symbols beyond 16 bits are clipped and counted.
uint64_t StoreBlock(const StepCode& code, const Rows& rows, std::span<float> out, Faults& faults);

}  // namespace kv::transform
