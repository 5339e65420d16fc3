// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Checks that archives of every released version are still restored byte for byte. The encoding may
// change from version to version; the decoding of these files may not. scripts/make/add_archives.py
// adds archives.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "formats/registry.h"
#include "lib/core/codec/wrappers/wrappers.h"
#include "tests/support/archives.h"
#include "tests/support/sha256.h"
#include "tests/support/temp_dir.h"

namespace kv::golden_archives_test {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(KVTOOL_TESTDATA) / "archives";

struct Row {
  std::string archive, archive_sha256, source_sha256, flags;
  uint64_t source_bytes = 0;
};

std::vector<Row> ReadManifest() {
  std::ifstream file(kFolder / "manifest.tsv");
  std::string line;
  std::getline(file, line);
  REQUIRE(line == "archive\tarchive_sha256\tsource_bytes\tsource_sha256\tflags");
  std::vector<Row> rows;
  while (std::getline(file, line)) {
    Row row;
    std::istringstream fields(line);
    std::string bytes;
    std::getline(fields, row.archive, '\t');
    std::getline(fields, row.archive_sha256, '\t');
    std::getline(fields, bytes, '\t');
    std::getline(fields, row.source_sha256, '\t');
    std::getline(fields, row.flags, '\t');
    row.source_bytes = std::stoull(bytes);
    rows.push_back(std::move(row));
  }
  return rows;
}

// Joins the files as scripts/make/add_archives.py does: each file of a folder follows its name and
// size.
Bytes ContentOf(const Archive& archive, const std::vector<Bytes>& files) {
  if (!archive.is_folder()) return files.at(0);
  Bytes content;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string head = fmt::format("{}\n{}\n", archive.files()[i].name, files[i].size());
    content.insert(content.end(), AsBytes(head).begin(), AsBytes(head).end());
    content.insert(content.end(), files[i].begin(), files[i].end());
  }
  return content;
}

// Checks that the archive describes its source as a reader of the source does today.
void CheckDescription(const Archive& archive, const std::vector<Bytes>& files) {
  const test::TempDir temp;
  const fs::path root = temp / "source";
  for (size_t i = 0; i < files.size(); ++i) {
    const fs::path path = archive.is_folder() ? root / archive.files()[i].name : root;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << AsText(files[i]);
  }
  const Snapshot now = OpenSnapshot(Source::Open(root), {});
  REQUIRE(archive.description().has_value());
  const Snapshot& then = *archive.description();
  CHECK(then.format == now.format);
  CHECK(then.key_rotation == now.key_rotation);
  CHECK(then.k_hadamard == now.k_hadamard);
  CHECK(then.v_hadamard == now.v_hadamard);
  CHECK(then.tokens == now.tokens);
  REQUIRE(then.layers.size() == now.layers.size());
  for (size_t i = 0; i < now.layers.size(); ++i) {
    CHECK(then.layers[i].index == now.layers[i].index);
    REQUIRE(then.layers[i].v.has_value() == now.layers[i].v.has_value());
    for (const bool value : {false, true}) {
      if (value && !now.layers[i].v) continue;
      const KvTensor& a = value ? *then.layers[i].v : then.layers[i].k;
      const KvTensor& b = value ? *now.layers[i].v : now.layers[i].k;
      CHECK(a.dtype == b.dtype);
      CHECK(a.heads == b.heads);
      CHECK(a.head_dim == b.head_dim);
    }
  }
}

}  // namespace

TEST_CASE("archives of every version are restored as the manifest says") {
  const std::vector<Row> rows = ReadManifest();
  REQUIRE(!rows.empty());
  std::set<uint8_t> codecs;
  std::set<DType> dtypes;
  std::set<ChunkKind> kinds;
  std::set<Order> orders, source_orders;
  std::set<std::string> files_listed, levels;
  for (const Row& row : rows) {
    INFO(row.archive);
    const auto data = FileSource::Open(kFolder / row.archive);
    // A file that changed is no longer an archive of that version.
    REQUIRE(test::Sha256(data->bytes()) == row.archive_sha256);
    const Archive archive = Archive::Open(data);
    CHECK(archive.has_index());
    CHECK(archive.damage().empty());
    const test::Unpacked unpacked = test::Unpack(archive);
    CHECK(unpacked.report.intact());
    const Bytes content = ContentOf(archive, unpacked.files);
    CHECK(content.size() == row.source_bytes);
    CHECK(test::Sha256(content) == row.source_sha256);
    if (row.flags.empty()) CheckDescription(archive, unpacked.files);
    for (const ArchivedChunk& chunk : archive.chunks()) {
      codecs.insert(chunk.head.codec);
      dtypes.insert(chunk.head.dtype);
      kinds.insert(chunk.head.kind);
      orders.insert(chunk.head.order);
      source_orders.insert(chunk.head.source_order);
    }
    files_listed.insert(row.archive);
    const std::string stem = fs::path(row.archive).stem().string();
    levels.insert(stem.substr(stem.rfind('.') + 1));
  }
  for (int id = 0; id < 256; ++id) {
    if (Name(static_cast<CodecId>(id)).empty()) continue;
    // These codecs occur in frames only; tests/core/frame/frame_test.cc decodes the existing
    // frames.
    const auto codec = static_cast<CodecId>(id);
    if (codec == CodecId::kSplit || codec == CodecId::kBlocks) continue;
    // This codec needs a profile: see tests/core/codec/profile_test.cc.
    if (static_cast<CodecId>(id) == CodecId::kProfiled) continue;
    // These codecs need another archive: see tests/cli/archive/base-golden.sh.
    if (NeedsOthers(static_cast<CodecId>(id))) continue;
    INFO("codec " << Name(static_cast<CodecId>(id)) << " has no archive: add_archives.py");
    CHECK(codecs.count(static_cast<uint8_t>(id)) == 1);
  }
  for (const DTypeInfo& info : AllDTypes()) {
    INFO(info.name << " has no archive: add_archives.py");
    CHECK(dtypes.count(info.dtype) == 1);
  }
  CHECK(kinds.size() == 3);
  CHECK(orders.size() == 3);  // decoded chunks never have the fourth order, [head][dim][token]
  CHECK(source_orders.size() == 4);
  for (const Effort effort :
       {Effort::kCompat, Effort::kFast, Effort::kDefault, Effort::kHigh, Effort::kMax}) {
    CHECK(levels.count(std::string(Name(effort))) == 1);
  }
  for (const auto& entry : fs::recursive_directory_iterator(kFolder)) {
    if (entry.path().extension() != ".kvz") continue;
    const std::string name = fs::relative(entry.path(), kFolder).generic_string();
    INFO(name << " is not in the manifest");
    CHECK(files_listed.count(name) == 1);
  }
}

}  // namespace kv::golden_archives_test
