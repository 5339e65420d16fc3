// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kv {

class Value;

// How tables of text show a value that is not null.
using Format = std::string (*)(const Value&);

// The one way to write each kind of number.
namespace format {

std::string Plain(const Value& value);  // as JSON has it; text without quotes
std::string Percent(double share);      // 0.1234 -> "12.34%"
std::string Factor(double factor);      // 3.5 -> "3.500x"
std::string Nats(double nats);          // three significant digits
std::string Real(double number);        // four significant digits
std::string Rate(double rate);          // "1234", "12.3": three figures at least
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
