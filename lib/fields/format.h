// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kv {

class Value;

// Formats a value that is not null for text tables.
using Format = std::string (*)(const Value&);

// The only way to write each kind of number.
namespace format {

std::string Plain(const Value& value);  // as in JSON; text without quotes
std::string Percent(double share);      // 0.1234 -> "12.34%"
std::string Factor(double factor);      // 3.5 -> "3.500x"
std::string Nats(double nats);          // three significant digits
std::string Real(double number);        // four significant digits
std::string Rate(double rate);          // "1234", "12.3": at least three digits
std::string Bytes(uint64_t bytes);      // "1.234 MiB", IEC units, 4 significant digits
std::string Plural(uint64_t count, std::string_view word);  // "1 state", "2 states"
std::string Time(int64_t seconds);                          // "2026-11-29 03:43:53Z", in UTC

std::string AsPercent(const Value& value);
std::string AsFactor(const Value& value);
std::string AsNats(const Value& value);
std::string AsReal(const Value& value);
std::string AsBytes(const Value& value);

}  // namespace format
}  // namespace kv
