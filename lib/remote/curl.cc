// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/remote/curl.h"

#include <dlfcn.h>

#include "lib/core/base/error.h"

namespace kv::remote {
namespace {

template <typename Function>
void Take(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function == nullptr) {
    throw Error(Finding::kOpenFailed, std::string("libcurl has no ") + name);
  }
}

Curl Load() {
  void* library = nullptr;
  // The flavours differ in who does their TLS.
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"}) {
    library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    throw Error(Finding::kOpenFailed, "reading URLs wants libcurl, which is not here")
        .Hint("install it (Debian: apt install libcurl4), or fetch the file: curl -O URL");
  }
  Curl curl = {};
  Take(library, "curl_easy_init", curl.easy_init);
  Take(library, "curl_easy_cleanup", curl.easy_cleanup);
  Take(library, "curl_easy_setopt", curl.easy_setopt);
  Take(library, "curl_easy_perform", curl.easy_perform);
  Take(library, "curl_easy_getinfo", curl.easy_getinfo);
  Take(library, "curl_easy_strerror", curl.easy_strerror);
  Take(library, "curl_slist_append", curl.slist_append);
  Take(library, "curl_slist_free_all", curl.slist_free_all);
  CURLcode (*global_init)(long) = nullptr;  // NOLINT: libcurl's own type
  Take(library, "curl_global_init", global_init);
  if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    throw Error(Finding::kNoResources, "libcurl does not start");
  }
  return curl;
}

}  // namespace

const Curl& LoadCurl() {
  static const Curl curl = Load();
  return curl;
}

}  // namespace kv::remote
