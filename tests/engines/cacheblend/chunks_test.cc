// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/core/base/error.h"
#include "lib/engines/cacheblend/cache_pair.h"
#include "tests/support/blend_case.h"

namespace kv::blend::chunks_test {
namespace {

using test::MakeBlendCase;
using Positions = std::vector<int64_t>;

std::string Refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return std::string(error.what()) + " " + error.hint();
  }
  return "accepted";
}

void Contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

TEST_CASE("chunks are joined in order, with or without their first token", "[blend]") {
  const auto made = MakeBlendCase({2, 3, 4}, 1);
  const OldCache plain = JoinChunks(made->chunks, BosRule::kNone, {});
  CHECK(plain.rows.tokens() == 9);
  CHECK(plain.positions == Positions{0, 1, 0, 1, 2, 0, 1, 2, 3});
  CHECK(plain.chunks[2].start == 5);
  const OldCache dropped = JoinChunks(made->chunks, BosRule::kDrop, {});
  CHECK(dropped.rows.tokens() == 7);
  CHECK(dropped.positions == Positions{0, 1, 1, 2, 1, 2, 3});
  const OldCache before = JoinChunks(made->chunks, BosRule::kDropped, {});
  CHECK(before.positions == Positions{0, 1, 1, 2, 3, 1, 2, 3, 4});
  std::vector<float> row(made->kv_heads * made->dim), same = row;
  dropped.rows.Read(1, true, 2, 1, row.data());
  plain.rows.Read(1, true, 3, 1, same.data());
  CHECK(row == same);
}

TEST_CASE("reads across chunks give the rows one by one", "[blend]") {
  const auto made = MakeBlendCase({2, 3, 4}, 2, DType::kBF16);
  const OldCache old = JoinChunks(made->chunks, BosRule::kNone, {});
  const uint64_t row = made->kv_heads * made->dim;
  std::vector<float> all(9 * row), one(row), head(made->dim);
  old.rows.Read(2, false, 0, 9, all.data());
  for (uint64_t t = 0; t < 9; ++t) {
    old.rows.Read(2, false, t, 1, one.data());
    CHECK(one == std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(t * row),
                                    all.begin() + static_cast<std::ptrdiff_t>((t + 1) * row)));
    old.rows.ReadHead(2, false, 1, t, 1, head.data());
    CHECK(head == std::vector<float>(one.begin() + made->dim, one.end()));
  }
}

TEST_CASE("positions of keys are said in four ways", "[blend]") {
  CHECK(!ParseKeyState("auto", "--x").state);
  CHECK(ParseKeyState("at:0,4,-22", "--x").at == Positions{0, 4, -22});
  for (const char* text :
       {"", "at:", "at:1,,2", "at:x", "at:99999999999", "at:-9223372036854775808", "turned"}) {
    CHECK_THROWS_AS(ParseKeyState(text, "--x"), Error);
  }
  const auto made = MakeBlendCase({2, 3}, 3);
  CHECK(JoinChunks(made->chunks, BosRule::kNone, ParseKeyState("global", "--x")).positions ==
        Positions{0, 1, 2, 3, 4});
  CHECK(JoinChunks(made->chunks, BosRule::kNone, ParseKeyState("at:7,100", "--x")).positions ==
        Positions{7, 8, 100, 101, 102});
  CHECK(JoinChunks(made->chunks, BosRule::kNone, ParseKeyState("unrotated", "--x"))
            .positions.empty());
  CHECK_THROWS_AS(JoinChunks(made->chunks, BosRule::kNone, ParseKeyState("at:7", "--x")), Error);
  // Chunks that the file records take precedence over those that its rows suggest.
  auto moved = std::make_shared<Snapshot>(*made->chunks[1]);
  moved->cell_groups.push_back({{}, 1, {{40, 0, {0}}, {41, 0, {0}}, {42, 0, {0}}}});
  CHECK(JoinChunks({made->chunks[0], moved}, BosRule::kNone, {}).positions ==
        Positions{0, 1, 40, 41, 42});
  moved->cell_groups[0].cells[2].position = 50;
  Contains(Refusal([&] {
             JoinChunks({made->chunks[0], moved}, BosRule::kNone, {});
           }),
           "without holes");
}

TEST_CASE("recorded positions out of any prompt's reach are refused", "[blend]") {
  const auto made = MakeBlendCase({1, 2}, 9);
  for (const int64_t position : {INT64_MAX, INT64_MIN, int64_t{-1}, int64_t{1} << 31}) {
    auto moved = std::make_shared<Snapshot>(*made->chunks[1]);
    moved->cell_groups.push_back({{}, 1, {{position, 0, {0}}, {0, 0, {0}}}});
    Contains(Refusal([&] {
               JoinChunks({made->chunks[0], moved}, BosRule::kNone, {});
             }),
             "expected 0 to 2^31");
  }
}

TEST_CASE("a joined file needs lengths that add up and a word on its keys", "[blend]") {
  const auto made = MakeBlendCase({2, 3, 4}, 4);
  CHECK(SplitOld(made->joined, {2, 3, 4}, BosRule::kNone, {}).state == KeyState::kUnrotated);
  const KeyStateFlag local{KeyState::kLocal, {}};
  CHECK(SplitOld(made->full, {2, 3, 4}, BosRule::kDropped, local).positions ==
        Positions{0, 1, 1, 2, 3, 1, 2, 3, 4});
  Contains(Refusal([&] { SplitOld(made->full, {2, 3, 4}, BosRule::kNone, {}); }), "--chunks-rope");
  Contains(Refusal([&] { SplitOld(made->full, {}, BosRule::kNone, local); }), "--chunk-tokens");
  Contains(Refusal([&] { SplitOld(made->joined, {2, 3}, BosRule::kNone, {}); }), "9 tokens");
  Contains(Refusal([&] { SplitOld(made->joined, {2, 7, 0}, BosRule::kNone, {}); }), "9 tokens");
  Contains(Refusal([&] {
             SplitOld(made->joined, {2, UINT64_MAX}, BosRule::kNone, {});
           }),
           "9 tokens");
  Contains(Refusal([&] { SplitOld(made->joined, {2, 3, 4}, BosRule::kDrop, {}); }), "--bos");
}

TEST_CASE("prompts that do not match are refused with both counts", "[blend]") {
  const auto made = MakeBlendCase({2, 3, 4}, 5);
  const FullCache full = WholePrompt(made->full, {});
  const auto refuse = [&](const std::vector<std::shared_ptr<const Snapshot>>& parts,
                          const std::string& part) {
    Contains(Refusal([&] { RequireSamePrompt(full, JoinChunks(parts, BosRule::kNone, {}), {}); }),
             part);
  };
  refuse({made->chunks[0], made->chunks[1]}, "5 tokens, the full run 9");
  refuse({made->chunks[0], made->chunks[1]}, "--suffix-tokens 4");
  const auto with_bos = MakeBlendCase({2, 4, 5}, 6);
  refuse(with_bos->chunks, "11 tokens, the full run 9");
  refuse(with_bos->chunks, "--bos drop");
  auto other = std::make_shared<Snapshot>(*made->chunks[1]);
  other->layers.pop_back();
  refuse({made->chunks[0], other, made->chunks[2]}, "3 layers, chunk0 has 4");
  auto heads = std::make_shared<Snapshot>(*made->chunks[1]);
  heads->layers[2].k.heads = heads->layers[2].v->heads = 1;
  refuse({made->chunks[0], heads, made->chunks[2]}, "layer 2 has 1 kv heads");
  auto latent = std::make_shared<Snapshot>(*made->chunks[1]);
  latent->layers[2].v.reset();
  refuse({made->chunks[0], latent, made->chunks[2]}, "no V");
  auto window = std::make_shared<Snapshot>(*made->chunks[1]);
  window->layers[3].k.pieces[0].tokens = 1;
  refuse({made->chunks[0], window, made->chunks[2]}, "every layer whole");
}

TEST_CASE("token ids must be the prompt's where both files record them", "[blend]") {
  const auto made = MakeBlendCase({2, 3}, 7);
  made->full->tokens = {10, 11, 12, 13, 14};
  auto chunk = std::make_shared<Snapshot>(*made->chunks[1]);
  chunk->tokens = {12, 13, 14};
  const FullCache full = WholePrompt(made->full, {});
  RequireSamePrompt(full, JoinChunks({made->chunks[0], chunk}, BosRule::kNone, {}), {});
  chunk->tokens[1] = 99;
  Contains(Refusal([&] {
             RequireSamePrompt(full, JoinChunks({made->chunks[0], chunk}, BosRule::kNone, {}), {});
           }),
           "token 1 has id 99, the full run has 13 at position 3");
}

TEST_CASE("the full run holds the prompt from position 0 on", "[blend]") {
  const auto made = MakeBlendCase({2, 1}, 8);
  made->full->cell_groups.push_back({{}, 1, {{5, 0, {0}}, {6, 0, {0}}, {7, 0, {0}}}});
  Contains(Refusal([&] { WholePrompt(made->full, {}); }), "position 5");
  Contains(Refusal([&] { WholePrompt(made->full, ParseKeyState("local", "--full-rope")); }),
           "--full-rope");
}

}  // namespace
}  // namespace kv::blend::chunks_test
