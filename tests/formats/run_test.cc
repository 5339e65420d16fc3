// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/run/run.h"

#include <catch2/catch.hpp>

#include "lib/core/base/error.h"
#include "tests/support/temp_dir.h"

namespace kv::run_test {
namespace {

// Makes a run of one file whose run.json ends in `more`.
std::string Run(const test::TempDir& folder, const std::string& more) {
  folder.WriteFile("run/snapshot.bin", AsBytes("x"));
  folder.WriteFile("run/run.json",
                   AsBytes(R"({"schema": "kvtool.run/1", "tokens": 9, "prompt_tokens": 4,)"
                           R"( "files": {"snapshot": "snapshot.bin"})" +
                           more + "}"));
  return (folder / "run").string();
}

}  // namespace

TEST_CASE("a run says what its snapshot cannot", "[run]") {
  const test::TempDir folder;
  const RecordedRun run =
      *OpenRun(Run(folder, R"(, "geometry": {"kv_heads": 3, "head_dim": null}, "nll": null,
                    "model": {"name": "m", "context_length": 2048},
                    "rope": {"style": "half", "base": 1e6, "dims": 64, "scaling": null})"));
  CHECK(run.snapshot == (folder / "run" / "snapshot.bin").string());
  CHECK(run.trace.empty());
  CHECK(run.tokens == 9);
  CHECK(run.prompt_tokens == 4);
  CHECK(run.kv_heads == 3);
  CHECK(run.head_dim == 0);
  CHECK_FALSE(run.nll);
  CHECK(run.context_length == 2048);
  CHECK(run.rope.style == "neox");
  CHECK(run.rope.base == 1e6);
  CHECK(run.rope.scaling == "none");
  CHECK_FALSE(OpenRun((folder / "nothing").string()));
  CHECK_FALSE(OpenRun((folder / "run" / "snapshot.bin").string()));
  CHECK_FALSE(OpenRun("-"));
}

TEST_CASE("scalings are told in the words of flags, or not at all", "[run]") {
  const test::TempDir folder;
  const auto rope = [&](const std::string& fields) {
    return OpenRun(
               Run(folder, R"(, "rope": {"style": "neighbour", "base": 10000, )" + fields + "}"))
        ->rope;
  };
  CHECK(rope(R"("dims": 8)").style == "gptj");
  CHECK(rope(R"("scaling": {"rope_type": "linear", "factor": 4})").scaling == "linear:4");
  CHECK(rope(R"("scaling": {"type": "llama3", "factor": 32, "low_freq_factor": 1,
              "high_freq_factor": 4, "original_max_position_embeddings": 8192})")
            .scaling == "llama3:32,1,4,8192");
  const std::string engine = R"("scaling": {"frequency_scale": 0.25, "attention": 1, )";
  CHECK(rope(engine + R"("extrapolation": 0})").scaling == "linear:4");
  for (const std::string& unknown :
       {engine + R"("extrapolation": 1})", engine + R"("extrapolation": 0, "factors": [1, 2]})",
        std::string(R"("scaling": {"rope_type": "yarn", "factor": 4})"),
        std::string(R"("local_base": 10000)"), std::string(R"("style": "sections")")}) {
    INFO(unknown);
    CHECK(rope(unknown).base == 0);
  }
}

TEST_CASE("sensitivities become nats per relative squared error", "[run]") {
  const test::TempDir folder;
  const std::string path =
      folder
          .WriteFile("s.json",
                     AsBytes(R"({"schema": "kvtool.sensitivity/1", "noise": 0.5,)"
                             R"( "layers": [{"layer": 3, "kl": 2}, {"layer": 0, "kl": 0}]})"))
          .string();
  CHECK(ReadSensitivity(path).Weights() == std::map<uint32_t, double>{{0, 0.0}, {3, 8.0}});
}

}  // namespace kv::run_test
