// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llama.h"

namespace kv::capture {

// Turned on by SIGINT and SIGTERM.
bool Interrupted();
void CatchInterrupts();

// A model and what is known of it. Refuses, by name, models whose memory is no plain KV cache.
class Model {
 public:
  // `backends`: the folder with the engine's backends, where it is not that of its libraries.
  Model(const std::string& path, const std::string& backends);

  llama_model* get() const { return model_.get(); }
  const llama_vocab* vocabulary() const { return llama_model_get_vocab(get()); }
  int32_t words() const { return llama_vocab_n_tokens(vocabulary()); }
  std::string Value(const std::string& key) const;  // of the file's metadata; "" if absent
  std::string architecture() const { return Value("general.architecture"); }
  std::string name() const;
  std::vector<llama_token> Tokenize(const std::string& text) const;

 private:
  void RefuseOtherMemories() const;

  std::unique_ptr<llama_model, void (*)(llama_model*)> model_;
};

// Looks at nodes of the graph, or changes them, while they are computed.
class Observer {
 public:
  virtual ~Observer() = default;
  // Called before a batch: positions [begin, begin + count).
  virtual void Begin(int32_t begin, int32_t count) {
    begin_ = begin;
    count_ = count;
  }
  // Whether the node's contents are wanted once they are computed.
  virtual bool Wants(ggml_tensor* node) = 0;
  virtual void Computed(ggml_tensor* node) = 0;
  // Called after a batch that succeeded.
  virtual void End() {}

 protected:
  int32_t begin_ = 0, count_ = 0;
};

struct ContextOptions {
  int32_t tokens = 0;  // room for
  int32_t ubatch = 512;
  int32_t threads = 0;         // 0: the engine's own choice
  std::optional<bool> flash;   // nothing: the engine's own choice
  std::string type_k, type_v;  // of the cache; "": the engine's own choice, f16
};

// A context with one sequence.
class Context {
 public:
  Context(const Model& model, const ContextOptions& options);

  // Where an observer throws, Decode throws the same when the engine has come back.
  void Observe(Observer* observer) { observer_ = observer; }
  // Decodes tokens at positions from `begin` on, in batches that the engine does not cut, and gives
  // the logits of those from `wanted` on.
  using Row = std::function<void(int32_t position, std::span<float> logits)>;
  void Decode(std::span<const llama_token> tokens, int32_t begin, int32_t wanted, const Row& row);

  void Forget(int32_t begin, int32_t end);  // positions; an end of -1 is the last
  void SaveState(const std::string& path, std::span<const llama_token> tokens);
  std::vector<uint8_t> State();
  void Restore(const std::vector<uint8_t>& state);

 private:
  static bool OnNode(ggml_tensor* node, bool ask, void* self);
  void DecodeBatch(std::span<const llama_token> tokens, int32_t begin, int32_t wanted,
                   const Row& row);

  const Model& model_;
  int32_t ubatch_;
  std::unique_ptr<llama_context, void (*)(llama_context*)> context_{nullptr, llama_free};
  Observer* observer_ = nullptr;
  std::exception_ptr thrown_;
};

}  // namespace kv::capture
