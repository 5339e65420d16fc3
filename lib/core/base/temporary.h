// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

namespace kv {

// The hidden name of an output until it is complete: ".NAME.kvtool-RANDOM.tmp" beside it. The file
// or folder of that name is removed with this object, by a signal that ends the program, and after
// SIGKILL or a crash by the next run that writes the same output.
class Temporary {
 public:
  Temporary() = default;
  // Chooses a name for an output at `path` and removes leftovers of killed runs. Creates nothing
  // yet.
  explicit Temporary(const std::filesystem::path& path);
  ~Temporary();
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  Temporary(Temporary&& other) noexcept;
  Temporary& operator=(Temporary&& other) noexcept;

  // Locks the name, which distinguishes it from a leftover; must be called with the open descriptor
  // once the name exists. Returns false if another run removed it as a leftover meanwhile.
  bool Claim(int descriptor) const;
  // Must be called when the name has become the output.
  void Release();

  const std::string& name() const { return name_; }
  explicit operator bool() const { return !name_.empty(); }

 private:
  void Remove();

  std::string name_;
};

// Returns the folder that contains the name; "." if the path has none.
std::filesystem::path ParentOf(const std::filesystem::path& path);

// Removes what a killed run left beside an output at `path`, for callers that take no name
// themselves.
void RemoveLeftovers(const std::filesystem::path& path);
// Removes a temporary name, and remembers it if something is left: the output is complete without
// it, and the next run that writes the same output tries again.
void RemoveOrRemember(const std::string& name) noexcept;
// Returns the names remembered since the last call.
std::vector<std::string> TakeUnremoved();

// Removes every name in use. For handlers of signals that end the program.
void RemoveTemporariesOnSignal();
// Blocks if RemoveTemporariesOnSignal has begun. Threads call this before they create something
// below a temporary folder.
void WaitIfEnding();

// Delays signals that end the program during its lifetime, because names are half changed.
class EndingHeld {
 public:
  EndingHeld();
  ~EndingHeld();
  EndingHeld(const EndingHeld&) = delete;
  EndingHeld& operator=(const EndingHeld&) = delete;

 private:
  sigset_t before_;
};

}  // namespace kv
