// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <clocale>
#include <cstdlib>
#include <string>

#include "tests/support/temp_dir.h"

namespace kv::test {

// Sets the process's locale to de_DE.UTF-8, whose decimal point is a comma, while it lives. Where
// the machine lacks the locale, localedef makes it in a temporary folder.
class GermanLocale {
 public:
  GermanLocale() {
    if (std::setlocale(LC_ALL, kName) != nullptr) return;
    const std::string made = (folder_ / kName).string();
    const std::string command = "localedef -i de_DE -f UTF-8 '" + made + "' >/dev/null 2>&1";
    if (std::system(command.c_str()) != 0) return;
    ::setenv("LOCPATH", folder_.path().c_str(), 1);
    std::setlocale(LC_ALL, kName);
    ::unsetenv("LOCPATH");
  }
  ~GermanLocale() { std::setlocale(LC_ALL, "C"); }
  GermanLocale(const GermanLocale&) = delete;
  GermanLocale& operator=(const GermanLocale&) = delete;

  bool is_set() const { return std::strtod("1,5", nullptr) == 1.5; }

 private:
  static constexpr const char* kName = "de_DE.UTF-8";
  TempDir folder_;
};

}  // namespace kv::test
