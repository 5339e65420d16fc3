// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

namespace kv {

// The hidden name that an output has until it is complete: ".NAME.kvtool-RANDOM.tmp" beside it. The
// file or folder of that name is removed with this object, by a signal that ends the program, and,
// where nothing could remove it (SIGKILL, a crash), by the next run that writes the same output.
class Temporary {
 public:
  Temporary() = default;
  // Chooses a name for an output at `path` and removes what a killed run left beside it. Nothing is
  // created yet.
  explicit Temporary(const std::filesystem::path& path);
  ~Temporary();
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  Temporary(Temporary&& other) noexcept;
  Temporary& operator=(Temporary&& other) noexcept;

  // Call with the open descriptor once the name exists: this tells it from a leftover. Returns
  // false if another run took it for a leftover meanwhile.
  bool Claim(int descriptor) const;
  // Call when the name has become the output and is free again.
  void Release();

  const std::string& name() const { return name_; }
  explicit operator bool() const { return !name_.empty(); }

 private:
  void Remove();

  std::string name_;
};

// The folder that holds the name: "." where the path has none.
std::filesystem::path ParentOf(const std::filesystem::path& path);

// Removes what a killed run left beside an output at `path`, for those that take no name.
void RemoveLeftovers(const std::filesystem::path& path);
// Removes a file, or a folder with all below it, as far as that can be done; links are not
// followed. Async-signal-safe.
void RemoveTree(const char* name);
// The same, and remembers the name where something of it is still there: the output is whole
// without it, and the next run that writes the same output tries again.
void RemoveOrRemember(const std::string& name) noexcept;
// The names remembered since the last call.
std::vector<std::string> TakeUnremoved();

// Removes every name in use. For handlers of signals that end the program.
void RemoveTemporariesOnSignal();
// If that has begun, waits for the end. Threads call this before they create something below a
// temporary folder.
void WaitIfEnding();

// No signal ends the program while an object of this class lives, because names are half changed.
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
