// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "apps/capture-llama/engine.h"
#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/versions.h"

namespace kv::capture {
namespace fs = std::filesystem;
namespace {

// The engine tells its errors to its log alone.
void OnLog(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fprintf(stderr, "llama.cpp: %s", text);
}

// Builds that choose a CPU at run time have their backends as libraries beside the others.
void LoadBackends(const std::string& folder) {
  if (!folder.empty()) {
    ggml_backend_load_all_from_path(folder.c_str());
  } else {
    ggml_backend_load_all();
  }
  Dl_info place;
  const auto* symbol = reinterpret_cast<const void*>(&ggml_backend_load_all_from_path);
  if (ggml_backend_dev_count() == 0 && dladdr(symbol, &place) != 0) {
    ggml_backend_load_all_from_path(fs::path(place.dli_fname).parent_path().c_str());
  }
  if (ggml_backend_dev_count() == 0) {
    throw Failure(
        kIo, "the engine finds no backend; --backends names the folder that holds libggml-cpu*.so");
  }
}

}  // namespace

Model::Model(const std::string& path, const std::string& backends)
    : model_(nullptr, llama_model_free) {
  llama_log_set(OnLog, nullptr);
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) throw Failure(kIo, path + ": no such model file");
  LoadBackends(backends);
  llama_backend_init();
  model_.reset(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
  if (!model_) throw Failure(kInvalid, path + ": the engine does not load this model");
  RefuseOtherMemories();
}

std::string Model::Value(const std::string& key) const {
  std::string text(256, '\0');
  const int32_t size = llama_model_meta_val_str(get(), key.c_str(), text.data(), text.size());
  if (size < 0) return "";
  if (static_cast<size_t>(size) >= text.size()) {  // cut off
    text.resize(static_cast<size_t>(size) + 1);
    llama_model_meta_val_str(get(), key.c_str(), text.data(), text.size());
  }
  text.resize(static_cast<size_t>(size));
  return text;
}

std::string Model::name() const {
  const std::string own = Value("general.name");
  if (!own.empty()) return own;
  char text[256];
  llama_model_desc(get(), text, sizeof text);
  return text;
}

void Model::RefuseOtherMemories() const {
  const std::string kind = architecture();
  const auto refuse = [&](const std::string& what) {
    throw Failure(kUnsupported, "models of the architecture " + kind + " " + what);
  };
  if (llama_model_is_recurrent(get())) refuse("keep a recurrent state, which is no KV cache");
  bool hybrid = versions::IsHybrid(get(), versions::Newer());
  for (const char* key : {".ssm.conv_kernel", ".wkv.head_size", ".shortconv.l_cache"}) {
    hybrid |= !Value(kind + key).empty();
  }
  if (hybrid) refuse("keep a recurrent state beside the KV cache");
  if (!Value(kind + ".attention.kv_lora_rank").empty()) {
    refuse("keep latent vectors in place of keys and values (MLA)");
  }
  if (llama_model_has_encoder(get())) refuse("have an encoder");
  const int32_t window = versions::SlidingWindow(get(), versions::Newer());
  if (window > 0) {
    refuse("keep layers with a sliding window (" + std::to_string(window) +
           " tokens) in a cache of their own, whose state lacks what has left the window; "
           "python -m kvtool.capture records them");
  }
}

std::vector<llama_token> Model::Tokenize(const std::string& text) const {
  std::vector<llama_token> tokens(text.size() + 8);
  int32_t count = -1;
  try {
    count = llama_tokenize(vocabulary(), text.data(), static_cast<int32_t>(text.size()),
                           tokens.data(), static_cast<int32_t>(tokens.size()), true, true);
  } catch (const std::exception&) {  // vocabularies that lack bytes
  }
  if (count < 0) throw Failure(kInvalid, "the model's vocabulary cannot say this text");
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

}  // namespace kv::capture
