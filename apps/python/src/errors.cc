// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/errors.h"

namespace kvtool_python {

void Raise(const Failure& failure) {
  const nb::object offset =
      failure.offset == UINT64_MAX ? nb::object(nb::none()) : nb::object(nb::int_(failure.offset));
  const std::string message =
      failure.message.empty() ? kvt_explain(failure.status, 1) : failure.message;
  const nb::object error = nb::module_::import_("kvtool._errors")
                               .attr("make_error")(-failure.status, kvt_explain(failure.status, 0),
                                                   kvt_fault(failure.status), message, offset,
                                                   failure.hint, failure.file, failure.text);
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

void RaiseIfFailed(kvt_status status, const kvt_ctx* ctx) {
  if (status == 0) return;
  Failure failure;
  failure.status = status;
  kvt_error error = {};
  error.struct_size = sizeof error;
  if (ctx != nullptr) kvt_ctx_error(ctx, &error);
  // A context that was busy kept nothing of this call.
  if (error.status == status) {
    failure.offset = error.offset;
    failure.message = error.message;
    failure.hint = error.hint;
  }
  Raise(failure);
}

}  // namespace kvtool_python
