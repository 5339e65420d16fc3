// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <clocale>
#include <cstdlib>
#include <string>

#include "tests/support/temp_dir.h"

namespace kv::test {

// Sets the process's locale while it exists, as a host program might. If the machine lacks the
// locale, localedef makes it in a temporary folder.
class HostLocale {
 public:
  // "de_DE" has a comma as its decimal point, "ps_AF" one of two bytes.
  explicit HostLocale(const std::string& territory) : name_(territory + ".UTF-8") {
    if (std::setlocale(LC_ALL, name_.c_str()) != nullptr) return;
    const std::string made = (folder_ / name_).string();
    const std::string command =
        "localedef -i " + territory + " -f UTF-8 '" + made + "' >/dev/null 2>&1";
    if (std::system(command.c_str()) != 0) return;
    ::setenv("LOCPATH", folder_.path().c_str(), 1);
    std::setlocale(LC_ALL, name_.c_str());
    ::unsetenv("LOCPATH");
  }
  ~HostLocale() { std::setlocale(LC_ALL, "C"); }
  HostLocale(const HostLocale&) = delete;
  HostLocale& operator=(const HostLocale&) = delete;

  bool is_set() const { return std::setlocale(LC_ALL, nullptr) == name_; }

 private:
  const std::string name_;
  TempDir folder_;
};

class GermanLocale : public HostLocale {
 public:
  GermanLocale() : HostLocale("de_DE") {}
};

}  // namespace kv::test
