// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/line/help.h"

namespace kv {

// Manual pages in man(7)'s language, the same on every machine.
struct ManualPage {
  std::string file;  // "kvtool-compress.1"
  std::string text;
};
// kvtool(1) first, then a page for each command.
std::vector<ManualPage> ManualPages(const std::vector<CommandDescription>& commands);

}  // namespace kv
