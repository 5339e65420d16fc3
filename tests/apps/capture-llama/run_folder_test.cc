// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/capture-llama/run_folder.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/tensor_file.h"
#include "formats/trace/trace.h"
#include "tests/support/temp_dir.h"

namespace kv::capture_run_test {
namespace {

namespace fs = std::filesystem;
using capture::Failure;
using capture::RunFolder;

const std::string kRun =
    R"({"schema": "kvtool.run/1", "prompt_tokens": 2, "model": {"name": "m", "file": "m.gguf"},
        "geometry": {"layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 3}, "files": {"trace": "trace"}})";

size_t Entries(const fs::path& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

capture::Status ExitStatusFor(const std::function<void()>& body) {
  try {
    body();
  } catch (const Failure& failure) {
    return failure.status;
  }
  return capture::kDone;
}

// Returns rows of layer `layer`, in the form in which the engine returns them.
std::vector<float> Queries(int layer, size_t rows) {
  std::mt19937 random(static_cast<unsigned>(layer));
  std::normal_distribution<float> normal;
  std::vector<float> values(rows * 4 * 3);
  for (float& value : values) value = normal(random);
  return values;
}

void WriteTrace(const RunFolder& folder, const std::vector<int32_t>& tokens) {
  for (int layer = 0; layer < 2; ++layer) {
    const std::string name = "q." + std::to_string(layer);
    capture::RowFile file(folder.At("trace/" + name + ".safetensors"), name, "F32", 4, {4, 3});
    const std::vector<float> rows = Queries(layer, tokens.size());
    // In two calls: first one row, then the other.
    file.Append(std::as_bytes(std::span(rows).first(12)));
    file.Append(std::as_bytes(std::span(rows).subspan(12)));
    CHECK(file.rows() == tokens.size());
    CHECK_THROWS_AS(file.Append(std::as_bytes(std::span(rows).first(11))), Failure);
    file.Complete();
  }
  capture::WriteTensors(folder.At("trace/trace.safetensors"),
                        {{"tokens", "I32", {tokens.size()}, std::as_bytes(std::span(tokens))}},
                        {{"kvtool.trace", "1"},
                         {"prompt_tokens", "2"},
                         {"q_start", "0"},
                         {"kv_heads", "2"},
                         {"scale", "0.25"},
                         {"model", "a \"model\""}});
}

TEST_CASE("a recorded trace is what the trace reader reads") {
  const test::TempDir temporary;
  const std::string path = temporary / "run";
  const std::vector<int32_t> tokens = {7, -1, 3, 4, 5};
  {
    RunFolder folder(path, false);
    WriteTrace(folder, tokens);
    CHECK_FALSE(fs::exists(path));
    folder.Commit(kRun);
  }
  CHECK(Entries(temporary.path()) == 1);
  const AttentionTrace trace = OpenTrace(path + "/trace", {});
  CHECK(trace.tokens == tokens);
  CHECK(trace.rows == 5);
  CHECK(trace.prompt_tokens == 2);
  CHECK(trace.scale == 0.25);
  REQUIRE(trace.layers.size() == 2);
  std::vector<float> head(5 * 3);
  ReadQueries(trace.layers[1], 2, 0, 5, head.data());
  const std::vector<float> rows = Queries(1, 5);
  for (size_t row = 0; row < 5; ++row) {
    for (size_t dim = 0; dim < 3; ++dim) CHECK(head[row * 3 + dim] == rows[row * 12 + 2 * 3 + dim]);
  }
  const capture::RecordedRun run = capture::ReadRun(path);
  CHECK(run.tokens == tokens);
  CHECK(run.prompt == 2);
  CHECK(run.model_file == "m.gguf");
  CHECK(run.geometry.kv_heads == 2);
}

TEST_CASE("a file of rows is no tensor file before it is complete") {
  const test::TempDir temporary;
  const std::vector<float> row(6);
  capture::RowFile file(temporary / "q.safetensors", "q", "F32", 4, {2, 3});
  file.Append(std::as_bytes(std::span(row)));
  CHECK_THROWS_AS(capture::ReadIntegers(temporary / "q.safetensors", "q"), Failure);
  CHECK_THROWS(OpenTrace(temporary.path(), {}));
}

TEST_CASE("tensors are written at places, and are zero elsewhere") {
  const test::TempDir temporary;
  const std::vector<int32_t> values = {1, 2};
  capture::PlacedTensor tensor(temporary / "t", "t", "I32", 4, {5});
  tensor.WriteAt(8, std::as_bytes(std::span(values)));
  tensor.Complete();
  CHECK(capture::ReadIntegers(temporary / "t", "t") == std::vector<int32_t>{0, 0, 1, 2, 0});
  CHECK_THROWS_AS(capture::PlacedTensor(temporary / "t", "t", "I32", 4, {5}), Failure);  // exists
}

TEST_CASE("a run that is not committed leaves nothing") {
  const test::TempDir temporary;
  {
    const RunFolder folder(temporary / "run", false);
    WriteTrace(folder, {1, 2, 3});
    CHECK(Entries(temporary.path()) == 1);
  }
  CHECK(Entries(temporary.path()) == 0);
}

TEST_CASE("only runs that hold nothing else are replaced, and only by force") {
  const test::TempDir temporary;
  const std::string path = temporary / "run";
  const auto record = [&](bool force) { RunFolder(path + "/", force).Commit(kRun); };
  fs::create_directory(path);
  CHECK(ExitStatusFor([&] { record(false); }) == capture::kDone);  // an empty folder
  CHECK(ExitStatusFor([&] { record(false); }) == capture::kIo);
  CHECK(ExitStatusFor([&] { record(true); }) == capture::kDone);
  std::ofstream(path + "/notes.txt") << "mine";
  CHECK(ExitStatusFor([&] { record(true); }) == capture::kIo);
  CHECK(fs::exists(path + "/notes.txt"));
  fs::remove(path + "/notes.txt");
  fs::remove(path + "/run.json");
  CHECK(ExitStatusFor([&] { record(true); }) == capture::kIo);  // no run
  fs::remove_all(path);
  std::ofstream(path) << "a file";
  CHECK(ExitStatusFor([&] { record(true); }) == capture::kIo);
  CHECK(Entries(temporary.path()) == 1);
}

TEST_CASE("runs that are none are refused") {
  const test::TempDir temporary;
  const std::string path = temporary / "run";
  RunFolder folder(path, false);
  WriteTrace(folder, {1, 2, 3});
  folder.Commit(kRun);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = kRun;
    text.replace(text.find(from), from.size(), to);
    std::ofstream(path + "/run.json") << text;
    return ExitStatusFor([&] { capture::ReadRun(path); });
  };
  CHECK(with("m.gguf", "n.gguf") == capture::kDone);
  CHECK(with("kvtool.run/1", "kvtool.run/2") == capture::kInvalid);
  CHECK(with("\"trace\"}", "\"../trace\"}") == capture::kInvalid);
  CHECK(with("\"trace\"}", "\"/trace\"}") == capture::kInvalid);
  CHECK(with("\"trace\"}", "\"a/../../b\"}") == capture::kInvalid);
  CHECK(with("\"prompt_tokens\": 2", "\"prompt_tokens\": 3") ==
        capture::kInvalid);  // nothing decoded
  CHECK(with("\"prompt_tokens\": 2", "\"prompt_tokens\": 0") == capture::kInvalid);
  CHECK(with("\"layers\": 2", "\"layers\": 65537") == capture::kInvalid);
  CHECK(with("\"kv_heads\": 2", "\"x\": 2") == capture::kInvalid);
  fs::remove(path + "/run.json");
  CHECK(ExitStatusFor([&] { capture::ReadRun(path); }) == capture::kInvalid);
  CHECK(ExitStatusFor([&] { capture::ReadRun(path + "/none"); }) == capture::kIo);
}

}  // namespace
}  // namespace kv::capture_run_test
