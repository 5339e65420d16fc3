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
#include "lib/core/codec/profiled/regressions.h"
#include "lib/core/kernels/symbols.h"

// A profile: statistics of K and V of each layer of one model, learnt beforehand, so that short
// pages need no tables of their own. FORMAT.md in this folder is the grammar of the .kvp file.
namespace kv {

// Limits of a profile, which bound the memory that decoding holds.
constexpr size_t kMostProfileEntries = 1024;
constexpr uint64_t kMostProfileBytes = uint64_t{256} << 20;
constexpr uint32_t kMostProfileColumns = 1 << 20;
constexpr uint32_t kMostProfileRows = 1 << 15;  // rows listed by one entry

// The statistics of K or V of one layer.
struct ProfileEntry {
  uint32_t layer = 0;
  bool is_value = false;
  DType dtype = DType::kF16;
  uint32_t columns = 0;        // values of a row: all heads of a token
  SymbolShape shape;           // shape of the symbols in the tables
  uint32_t expected = 0;       // bits of 1024 values, as coded in training
  std::vector<uint8_t> first;  // per column, the symbol assumed above a page's first row
  ContextModel model;
  Bytes rows;  // frequently repeated rows, one after another

  uint64_t row_bytes() const { return uint64_t{columns} * 2; }
  uint32_t row_count() const { return static_cast<uint32_t>(rows.size() / row_bytes()); }
};

// Tables derived from an entry once, for encoding and decoding with it.
struct ProfileCoder {
  explicit ProfileCoder(const ProfileEntry& entry);
  // Returns the index of a listed row with these bytes; nullopt if there is none.
  std::optional<uint32_t> FindRow(const ProfileEntry& entry, ByteSpan row) const;

  std::array<uint8_t, 256> table_of{};
  std::vector<RansSlot> slots;
  std::vector<RansEncoderSymbol> encoder_symbols;
  std::vector<uint8_t> nearest;  // [table << 8 | symbol]: the nearest symbol that the table has
  // cost of `nearest`, in 256ths of a bit; high where the table lacks it
  std::vector<uint16_t> cost;

 private:
  std::vector<uint32_t> places_;  // hash table of rows; a place holds 1 + index
};

class Profile {
 public:
  // Throws kBadMagic, kUnsupportedVersion, kTruncated, kTrailingBytes, kChecksum, kBadField,
  // kBadFrame, kLimit, kDuplicateName.
  static std::shared_ptr<const Profile> Read(ByteSpan file);
  // Sorts the entries by layer, K before V. Each element type has its own entries.
  // Without regressions the file has version 1, which all readers know.
  static std::shared_ptr<const Profile> Make(std::string name, std::vector<ProfileEntry> entries,
                                             const Regressions& regressions = {});
  static bool HasMagic(ByteSpan file);

  ~Profile();
  const Bytes& file() const { return file_; }        // the bytes of the .kvp file
  const std::string& name() const { return name_; }  // name of the model, as passed to the trainer
  // identifies the profile in frames and archives
  const Hash128Bytes& hash() const { return hash_; }
  const std::vector<ProfileEntry>& entries() const { return entries_; }
  const Regressions& regressions() const { return regressions_; }
  // Returns the coder of an entry, made on first use. May be called from any thread.
  const ProfileCoder& GetCoder(size_t entry) const;
  // Returns the integers of a regression's weights, decoded on first use. May be called from any
  // thread. Throws what DecodeWeights throws.
  const std::vector<int8_t>& GetIntegers(size_t regression) const;

 private:
  struct Coders;
  Profile(std::string name, std::vector<ProfileEntry> entries, Regressions regressions, Bytes file);

  Bytes file_;
  std::string name_;
  std::vector<ProfileEntry> entries_;
  Regressions regressions_;
  Hash128Bytes hash_;
  std::unique_ptr<Coders> coders_;
};

// Returns "1f0c...", 32 digits.
std::string ProfileHashText(const Hash128Bytes& hash);

// Learns one entry from the rows of one tensor, possibly from several caches.
class ProfileTrainer {
 public:
  ProfileTrainer(uint32_t layer, bool is_value, DType dtype, uint32_t columns);
  ~ProfileTrainer();
  ProfileTrainer(ProfileTrainer&&) noexcept;
  // Adds consecutive rows of one cache.
  void Add(ByteSpan rows);
  ProfileEntry Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kv
