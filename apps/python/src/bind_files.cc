// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include "apps/python/src/bindings.h"
#include "apps/python/src/commands.h"
#include "apps/python/src/snapshots.h"

namespace kvtool_python {

// What apps/python/kvtool/_files.py and _snapshot.py give names and types.
void BindFiles(nb::module_& m) {
  m.def(
      "_run",
      [](const std::string& command, nb::handle arguments, nb::handle progress) {
        const CommandOutcome outcome = RunCommand(command, arguments, progress);
        nb::list documents, warnings;
        for (const std::string& text : outcome.documents) documents.append(text);
        for (const std::string& text : outcome.warnings) {
          warnings.append(nb::steal(PyUnicode_DecodeUTF8(
              text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace")));
        }
        return nb::make_tuple(outcome.status, documents, warnings);
      },
      nb::arg("command"), nb::arg("arguments"), nb::arg("progress") = nb::none(),
      nb::sig("def _run(command: str, arguments: Sequence[bytes], progress: Progress = None) -> "
              "tuple[int, list[str], list[str]]"));
  m.def("_main", &RunMain, nb::arg("arguments"),
        nb::sig("def _main(arguments: Sequence[bytes]) -> int"));
  m.def(
      "_save",
      [](nb::bytes path, const std::string& format, nb::handle layers, nb::handle dtype,
         nb::handle positions, nb::handle tokens, bool force) {
        SaveSnapshot({path.c_str(), path.size()}, format, layers, dtype, positions, tokens, force);
      },
      nb::arg("path"), nb::arg("format"), nb::arg("layers"), nb::arg("dtype").none(),
      nb::arg("positions").none(), nb::arg("tokens").none(), nb::arg("force"),
      nb::sig("def _save(path: bytes, format: str, layers: Sequence[tuple[Readable, Readable]], "
              "dtype: DType, positions: Sequence[int] | None, tokens: Sequence[int] | None, force: "
              "bool) -> None"));
  nb::class_<OpenedSnapshot>(m, "_OpenedSnapshot")
      .def("description", &OpenedSnapshot::Description)
      .def("facts", &OpenedSnapshot::Facts, nb::sig("def facts(self) -> dict[str, Any]"))
      .def("layers", &OpenedSnapshot::Layers, nb::sig("def layers(self) -> list[Any]"))
      .def("positions", &OpenedSnapshot::Positions,
           nb::sig("def positions(self) -> list[tuple[str, list[int]]]"))
      .def("tokens", &OpenedSnapshot::Tokens, nb::sig("def tokens(self) -> list[int]"))
      .def("array", &OpenedSnapshot::Array, nb::arg("layer"), nb::arg("is_value"),
           nb::sig("def array(self, layer: int, is_value: bool) -> tuple[Any, str, bool]"));
  m.def("_open", &OpenedSnapshot::Open, nb::arg("arguments"), nb::arg("dtype"),
        nb::sig("def _open(arguments: Sequence[bytes], dtype: str) -> _OpenedSnapshot"));
}

}  // namespace kvtool_python
