// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/engines.h"

#include "lib/engines/mnn/gate/engine.h"

namespace kv {

gate::Engines Engines() {
  static const gate::Engine* const kTable[] = {&mnn::Engine()};
  return kTable;
}

}  // namespace kv
