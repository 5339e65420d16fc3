// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <curl/curl.h>

// libcurl, loaded when the first URL is opened: a program that reads files only does not load the
// thirty libraries behind it, and runs where it is not installed.
namespace kv::remote {

struct Curl {
  CURL* (*easy_init)();
  void (*easy_cleanup)(CURL*);
  CURLcode (*easy_setopt)(CURL*, CURLoption, ...);
  CURLcode (*easy_perform)(CURL*);
  CURLcode (*easy_getinfo)(CURL*, CURLINFO, ...);
  const char* (*easy_strerror)(CURLcode);
  curl_slist* (*slist_append)(curl_slist*, const char*);
  void (*slist_free_all)(curl_slist*);
};

// Throws kOpenFailed, which says what to install.
const Curl& LoadCurl();

}  // namespace kv::remote
