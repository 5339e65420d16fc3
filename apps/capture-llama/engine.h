// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// llama.cpp as the program uses it: models, contexts and observers of the graph.
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

// Returns true after SIGINT or SIGTERM.
bool Interrupted();
void CatchInterrupts();

// A model and its properties. Refuses, by name, models whose memory is no plain KV cache.
class Model {
 public:
  // `backends` is the folder with the engine's backends, if it is not that of its libraries.
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

// Reads nodes of the graph, or changes them, while they are computed.
class Observer {
 public:
  virtual ~Observer() = default;
  // Called before a batch: positions [begin, begin + count).
  virtual void Begin(int32_t begin, int32_t count) {
    begin_ = begin;
    count_ = count;
  }
  // Returns true if the node's contents are needed once they are computed.
  virtual bool Wants(ggml_tensor* node) = 0;
  virtual void Computed(ggml_tensor* node) = 0;
  // Called after a batch that succeeded.
  virtual void End() {}

 protected:
  int32_t begin_ = 0, count_ = 0;
};

struct ContextOptions {
  int32_t tokens = 0;  // capacity
  int32_t ubatch = 512;
  int32_t threads = 0;         // 0: the engine's default
  std::optional<bool> flash;   // empty: flash attention as the engine decides
  std::string type_k, type_v;  // types of the cache; "": f16, the engine's default
};

// A context with one sequence.
class Context {
 public:
  Context(const Model& model, const ContextOptions& options);

  // If an observer throws, Decode throws the same exception after the engine has returned.
  void Observe(Observer* observer) { observer_ = observer; }
  // Decodes tokens at positions from `begin` on, in batches that the engine does not split, and
  // passes on the logits of positions from `wanted` on.
  using Row = std::function<void(int32_t position, std::span<float> logits)>;
  void Decode(std::span<const llama_token> tokens, int32_t begin, int32_t wanted, const Row& row);

  void Forget(int32_t begin, int32_t end);  // drops positions; an end of -1: the cache's end
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
