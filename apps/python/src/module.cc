// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/bindings.h"

NB_MODULE(_kvtool, m) {
  using namespace kvtool_python;
  // An engine ends while its threads still hold contexts; what a process that ends does not free is
  // no news to its user.
  nb::set_leak_warnings(false);
  BindBatchResult(m);
  BindContext(m);
  BindFunctions(m);
  m.def(
      "_explain",
      [](int finding) {
        const kvt_status status = -finding;
        return nb::make_tuple(kvt_explain(status, 0), kvt_explain(status, 1),
                              kvt_explain(status, 2), kvt_fault(status));
      },
      nb::arg("finding"), nb::sig("def _explain(finding: int) -> tuple[str, str, str, int]"));
  BindFiles(m);
  m.def(
      "_version", [] { return nb::make_tuple(kvt_version(), kvt_build()); },
      nb::sig("def _version() -> tuple[int, str]"));
}
