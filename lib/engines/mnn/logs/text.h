// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/gate/json.h"

namespace kv::mnn::logs {

// Words and numbers of the engine's tools, which are Python: read as they read them, written as
// they write them.

using gate::Json;
using gate::ParseJson;
using gate::TextAt;
using gate::TruthAt;

std::string_view Strip(std::string_view text);
std::string_view StripAll(std::string_view text, char c);
bool Contains(std::string_view text, std::string_view part);
bool ContainsIgnoringCase(std::string_view text, std::string_view part);
bool StartsWith(std::string_view text, std::string_view prefix);
// Lines without their ends, as str.splitlines finds them (ASCII ends).
void ForEachLine(std::string_view text, const std::function<void(std::string_view)>& use);

// Bytes that are no UTF-8 left out (errors="ignore").
std::string OnlyUtf8(std::string_view text);
std::string_view FirstCodePoints(std::string_view text, size_t count);

// The tools' number: the first match of [-+]?[0-9]*\.?[0-9]+, which reads "1e-05" as 1; whole texts
// such as "nan" and "inf" only with `words`.
double LooseNumber(std::string_view text, double otherwise = 0, bool words = false);
// The first number in the text in full, with its exponent.
std::optional<double> FirstNumber(std::string_view text);
// The whole text as a number.
std::optional<double> WholeNumber(std::string_view text);

// A word that is a number and not finite: "nan", "-inf", "1e999", "-1.#IND"; and whether a cell
// such as "6.00 ± nan" has one.
bool IsNonFinite(std::string_view word);
bool HasNonFinite(std::string_view cell);

// "%.4f" as Python prints it: one spelling of NaN.
std::string Fixed(double value, int digits);
std::string_view Bool(bool value);                              // true, false
std::string PythonText(std::string_view text);                  // 'text'
std::string PythonValue(const Json& value);                     // [0, 1], None, True
std::string PythonList(const std::vector<std::string>& texts);  // ['a', 'b']

// Numbers (and texts and booleans that convert as in Python) under a key of an object; `otherwise`
// for all else.
double NumberAt(const Json& object, std::string_view key, double otherwise = 0);

}  // namespace kv::mnn::logs
