// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/torch/pickle.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "formats/format.h"

namespace kv {
namespace {

using std::string_view;

// The names that a pickle may mention. No name is ever resolved. A file that mentions a forbidden
// one was made to run code in its loader, so it is not read at all.

// Modules that are forbidden with everything below them.
constexpr string_view kForbiddenModules[] = {
    "_aix_support", "_ctypes",   "_io",          "_osx_support", "_pickle",    "_posixsubprocess",
    "_pyrepl",      "_socket",   "_thread",      "asyncio",      "atexit",     "bdb",
    "cloudpickle",  "code",      "codeop",       "commands",     "ctypes",     "dill",
    "distutils",    "ensurepip", "ftplib",       "http",         "idlelib",    "imp",
    "importlib",    "io",        "joblib",       "lib2to3",      "marshal",    "multiprocessing",
    "nt",           "ntpath",    "nturl2path",   "os",           "pdb",        "pickle",
    "pickletools",  "pip",       "pkgutil",      "platform",     "poplib",     "popen2",
    "posix",        "posixpath", "profile",      "cProfile",     "pty",        "pydoc",
    "requests",     "runpy",     "setuptools",   "shelve",       "shutil",     "signal",
    "smtplib",      "socket",    "socketserver", "ssl",          "subprocess", "sys",
    "sysconfig",    "telnetlib", "tempfile",     "threading",    "timeit",     "urllib",
    "urllib2",      "urllib3",   "venv",         "webbrowser",   "xmlrpc",     "zipimport"};

// Forbidden names of modules that also hold data classes.
constexpr string_view kForbiddenNames =
    "codecs.open functools.reduce logging.config.listen numpy.DataSource numpy.fromfile numpy.load "
    "numpy.memmap numpy.save numpy.lib.npyio.load numpy.testing._private.utils.runstring "
    "operator.attrgetter operator.methodcaller torch.compile torch.jit.load "
    "torch.jit.unsupported_tensor_ops.execWrapper torch.load torch.save torch.serialization.load "
    "torch.serialization.save types.CodeType types.FunctionType";

// Forbidden parts of data packages: they load or build code.
constexpr string_view kForbiddenPackages[] = {"torch.hub",
                                              "torch.multiprocessing",
                                              "torch.utils.bottleneck",
                                              "torch.utils.collect_env",
                                              "torch.utils.cpp_extension",
                                              "torch.utils.model_zoo",
                                              "torch.package",
                                              "torch._dynamo",
                                              "torch._inductor",
                                              "torch.ops",
                                              "torch.classes",
                                              "numpy.ctypeslib",
                                              "numpy.distutils",
                                              "numpy.f2py"};

// Allowed builtins: types that hold data.
constexpr string_view kBuiltinData[] = {
    "bool", "bytearray", "bytes",   "complex",  "dict",           "float", "frozenset",
    "int",  "list",      "long",    "object",   "range",          "set",   "slice",
    "str",  "tuple",     "unicode", "Ellipsis", "NotImplemented",
};

constexpr string_view kDataPackages[] = {"collections", "numpy", "torch", "transformers"};

string_view FirstPart(string_view dotted) { return dotted.substr(0, dotted.find('.')); }

bool IsBuiltins(string_view module) {
  return module == "builtins" || module == "__builtin__" || module == "__builtins__";
}

}  // namespace

bool IsForbiddenGlobal(string_view module, string_view name) {
  if (IsBuiltins(FirstPart(module)))
    return module != FirstPart(module) || !Contains(kBuiltinData, name);
  if (Contains(kForbiddenModules, FirstPart(module))) return true;
  const std::string whole = std::string(module) + "." + std::string(name);
  if (HasWord(kForbiddenNames, whole)) return true;
  for (const string_view package : kForbiddenPackages) {
    if (whole.starts_with(package) &&
        (whole.size() == package.size() || whole[package.size()] == '.'))
      return true;
  }
  // Protocol 4 resolves dots in the name: "torch" + "serialization.os.system" is os.system.
  string_view rest = name;
  for (size_t dot; (dot = rest.find('.')) != string_view::npos; rest.remove_prefix(dot + 1)) {
    const string_view part = rest.substr(0, dot);
    if (Contains(kForbiddenModules, part) || IsBuiltins(part) || part.starts_with("__"))
      return true;
  }
  return false;
}

bool IsDataClass(string_view global) { return Contains(kDataPackages, FirstPart(global)); }

std::string_view Pickle::FindClass(PickleId id) const {
  const PickleValue& value = values_[id];
  if (value.kind() != PickleKind::kObject) return {};
  const PickleValue& callable = values_[value.items()[0]];
  return callable.kind() == PickleKind::kGlobal ? callable.text() : std::string_view("?");
}

PickleId Pickle::Get(PickleId dict, std::string_view key) const {
  const PickleValue& value = values_[dict];
  if (value.kind() != PickleKind::kDict) return kPickleNone;
  const std::span<const PickleId> items = value.items();
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const PickleValue& candidate = values_[items[i]];
    if (candidate.kind() == PickleKind::kText && candidate.text() == key) return items[i + 1];
  }
  return kPickleNone;
}

std::string Pickle::Describe(PickleId id) const {
  constexpr string_view kKinds[] = {"None",   "a bool", "an int", "an int",   "a float",
                                    "a text", "bytes",  "a list", "a tuple",  "a set",
                                    "a dict", "",       "",       "a storage"};
  const PickleKind kind = values_[id].kind();
  if (kind == PickleKind::kGlobal) return fmt::format("the name {}", Escaped(values_[id].text()));
  if (kind == PickleKind::kObject) return fmt::format("an object of {}", Escaped(FindClass(id)));
  return std::string(kKinds[static_cast<size_t>(kind)]);
}

PickleId* PickleItems::Take(size_t count) {
  constexpr size_t kMostItems = 1 << 15;  // items of a page
  if (count > left_) {
    if (count > page_ / 4) {  // gets a page of its own, so that the current one is not wasted
      pages_.push_back(std::make_unique_for_overwrite<PickleId[]>(count));
      return pages_.back().get();
    }
    pages_.push_back(std::make_unique_for_overwrite<PickleId[]>(page_));
    next_ = pages_.back().get();
    left_ = page_;
    page_ = std::min(2 * page_, kMostItems);
  }
  left_ -= count;
  return std::exchange(next_, next_ + count);
}

}  // namespace kv
