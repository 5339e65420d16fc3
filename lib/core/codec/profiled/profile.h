// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/hash.h"
#include "lib/core/codec/codec.h"
#include "lib/core/codec/context/model.h"
#include "lib/core/kernels/symbols.h"

// What K and V of each layer of one model look like, learnt beforehand, so that short pages need no
// tables of their own. FORMAT.md in this folder is the grammar of the .kvp file.
namespace kv {

// A profile describes at most so many tensors: what decoding holds in memory follows from it.
constexpr size_t kMostProfileEntries = 1024;
constexpr uint64_t kMostProfileBytes = uint64_t{256} << 20;
constexpr uint32_t kMostProfileColumns = 1 << 20;
constexpr uint32_t kMostProfileRows = 1 << 15;  // that one entry lists

// K or V of one layer.
struct ProfileEntry {
  uint32_t layer = 0;
  bool is_value = false;
  DType dtype = DType::kF16;
  uint32_t columns = 0;        // values of a row: all heads of a token
  SymbolShape shape;           // of the symbols that the tables are over
  uint32_t expected = 0;       // bits of 1024 values, as coded in training
  std::vector<uint8_t> first;  // per column, the symbol that stands above a page's first row
  ContextModel model;
  Bytes rows;  // that come back again and again, one after another

  uint64_t row_bytes() const { return uint64_t{columns} * 2; }
  uint32_t row_count() const { return static_cast<uint32_t>(rows.size() / row_bytes()); }
};

// What coding with an entry needs, made of it once.
struct ProfileCoder {
  explicit ProfileCoder(const ProfileEntry& entry);
  // The number of an entry's row; nothing if the bytes are none.
  std::optional<uint32_t> FindRow(const ProfileEntry& entry, ByteSpan row) const;

  std::array<uint8_t, 256> table_of{};
  std::vector<RansSlot> slots;
  std::vector<RansEncoderSymbol> encoder_symbols;
  std::vector<uint8_t> nearest;  // [table << 8 | symbol]: a symbol that the table has
  std::vector<uint16_t> cost;    // of it, in 256ths of a bit; far more where the table lacks it

 private:
  std::vector<uint32_t> places_;  // of rows, 1 + number, by their hashes
};

class Profile {
 public:
  // Throws kBadMagic, kUnsupportedVersion, kTruncated, kTrailingBytes, kChecksum, kBadField,
  // kBadFrame, kLimit, kDuplicateName.
  static std::shared_ptr<const Profile> Read(ByteSpan file);
  // Entries are sorted by layer, K before V; a type has entries of its own.
  static std::shared_ptr<const Profile> Make(std::string name, std::vector<ProfileEntry> entries);
  static bool HasMagic(ByteSpan file);

  ~Profile();
  const Bytes& file() const { return file_; }         // the bytes of the .kvp file
  const std::string& name() const { return name_; }   // of the model, as the trainer was told
  const Hash128Bytes& hash() const { return hash_; }  // by which frames and archives name it
  const std::vector<ProfileEntry>& entries() const { return entries_; }
  // Makes the coder of an entry when it is first asked for. Any thread.
  const ProfileCoder& CoderOf(size_t entry) const;

 private:
  struct Coders;
  Profile(std::string name, std::vector<ProfileEntry> entries, Bytes file);

  Bytes file_;
  std::string name_;
  std::vector<ProfileEntry> entries_;
  Hash128Bytes hash_;
  std::unique_ptr<Coders> coders_;
};

// "1f0c...", 32 digits.
std::string ProfileHashText(const Hash128Bytes& hash);

// Learns one entry from rows of one tensor, or of the same tensor of several caches.
class ProfileTrainer {
 public:
  ProfileTrainer(uint32_t layer, bool is_value, DType dtype, uint32_t columns);
  ~ProfileTrainer();
  ProfileTrainer(ProfileTrainer&&) noexcept;
  // Consecutive rows of one cache.
  void Add(ByteSpan rows);
  ProfileEntry Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kv
