// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/weights/checkpoint.h"

#include <catch2/catch.hpp>

#include "tests/support/refusal.h"
#include "tests/support/sample_weights.h"

namespace kv::checkpoint_test {
namespace {

using test::SampleWeights;

// Returns the sample as a container holds it, with names that begin with `container`.
TensorFile FindFile(const CompressorWeights& weights, const std::string& container = "") {
  TensorFile file;
  file.format = "torch";
  file.spools = weights.spools;
  for (uint32_t layer = 0; layer < weights.header.num_layers; ++layer) {
    for (uint32_t i = 0; i < weights.header.blocks_per_layer; ++i) {
      const std::string key = container + BlockKey(weights, layer, i);
      const LinearBlock& block = weights.Block(layer, i);
      file.tensors.push_back({key + ".weight", block.weight, ""});
      file.tensors.push_back({key + ".bias", block.bias, ""});
    }
  }
  return file;
}

Finding Refusal(TensorFile file, const CheckpointOptions& options = {}) {
  return test::FindingOf([&] { MakeWeights(std::move(file), options); });
}

void Rename(TensorFile& file, const std::string& from, const std::string& to) {
  for (NamedTensor& tensor : file.tensors) {
    const size_t at = tensor.name.find(from);
    if (at != std::string::npos) tensor.name.replace(at, from.size(), to);
  }
}

}  // namespace

TEST_CASE("the compressor is found in every usual wrapper") {
  const CompressorWeights sample = SampleWeights();
  for (const std::string container :
       {"", "compressor/", "model_state_dict/compressor/", "state_dict/", "model/", "module.",
        "model_state_dict/", "state_dict/module."}) {
    INFO(container);
    const CompressorWeights weights = MakeWeights(FindFile(sample, container), {});
    CHECK(weights.container == container);
    CHECK(weights.header.num_layers == 2);
    CHECK(weights.header.compression_factor == 2);
    CHECK(weights.header.head_dim == 4);
    CHECK(weights.prefixes == sample.prefixes);
    CHECK(weights.slots == sample.slots);
    CHECK_FALSE(weights.is_text_only());
    REQUIRE(weights.blocks.size() == sample.blocks.size());
    for (size_t i = 0; i < sample.blocks.size(); ++i) {
      CHECK(weights.blocks[i].weight.data == sample.blocks[i].weight.data);
      CHECK(weights.blocks[i].bias.data == sample.blocks[i].bias.data);
    }
  }
}

TEST_CASE("of several places the converter's order decides, else nobody") {
  const CompressorWeights sample = SampleWeights();
  TensorFile both = FindFile(sample, "compressor/");
  const TensorFile other = FindFile(sample, "ema/");
  both.tensors.insert(both.tensors.end(), other.tensors.begin(), other.tensors.end());
  CHECK(MakeWeights(both, {}).container == "compressor/");
  Rename(both, "compressor/", "student/");
  CHECK(Refusal(both) == Finding::kAmbiguousFormat);
}

TEST_CASE("text-only checkpoints, other slots and other prefixes are found or named") {
  CHECK(MakeWeights(FindFile(SampleWeights(1, 2)), {}).is_text_only());
  CheckpointOptions text;
  text.text_only = true;
  CHECK(MakeWeights(FindFile(SampleWeights()), text).prefixes.size() == 2);

  TensorFile fused = FindFile(SampleWeights(1));
  Rename(fused, ".6.", ".5.");
  Rename(fused, ".3.", ".2.");
  CHECK(MakeWeights(fused, {}).slots == std::vector<uint32_t>{0, 2, 5});

  TensorFile other = FindFile(SampleWeights(1, 1));
  Rename(other, "compress_tk", "squeeze");
  CHECK(Refusal(other) == Finding::kMissingRecord);
  CheckpointOptions named;
  named.prefix_order = {"squeeze"};
  CHECK(MakeWeights(other, named).prefixes == named.prefix_order);
}

TEST_CASE("lists of prefixes and slots may have blanks, empty items and a wrapper's module") {
  using Names = std::vector<std::string>;
  CHECK(ParsePrefixOrder(" compress_tk ,\tmodule.compress_tv,, ") ==
        Names{"compress_tk", "compress_tv"});
  CHECK(ParsePrefixOrder(" , ").empty());
  CHECK(ParseSlotOrder(" 0, 3 ,6\n") == std::vector<uint32_t>{0, 3, 6});
  for (const char* bad : {"0,3,x", "0,-3,6", "0,3 3,6", "4294967296"}) {
    CHECK_THROWS_AS(ParseSlotOrder(bad), Error);
  }
  // Names that did not come from ParseSlotOrder may have spaces, too.
  CheckpointOptions options;
  options.prefix_order = {" compress_tv", "", "compress_tk "};
  const Names wanted = {"compress_tv", "compress_tk"};
  CHECK(MakeWeights(FindFile(SampleWeights()), options).prefixes == wanted);
  CHECK(Adjusted(SampleWeights(), options).prefixes == wanted);
}

TEST_CASE("what a .bin could not hold is refused with what is missing") {
  TensorFile gap = FindFile(SampleWeights(3));
  Rename(gap, "compress_tk.1.", "attention.1.");
  CHECK(Refusal(gap) == Finding::kMissingRecord);

  TensorFile flat = FindFile(SampleWeights());
  flat.tensors[0].view.shape = {4, 8, 1};
  flat.tensors[0].view.strides = {32, 4, 4};
  CHECK(Refusal(flat) == Finding::kInconsistent);

  TensorFile four = FindFile(SampleWeights(1));
  four.tensors.push_back({"compress_tk.0.9.weight", four.tensors[0].view, ""});
  CHECK(Refusal(four) == Finding::kInconsistent);

  TensorFile far = FindFile(SampleWeights(1));
  far.tensors.push_back({"compress_tk.4294967295.0.weight", far.tensors[0].view, ""});
  CHECK(Refusal(far) == Finding::kBadName);

  CheckpointOptions three;
  three.head_dim = 3;
  CHECK(Refusal(FindFile(SampleWeights()), three) == Finding::kInconsistent);
  CHECK(Refusal(TensorFile()) == Finding::kMissingRecord);
}

TEST_CASE("a bias of another size is dropped and reported, one of another shape is taken") {
  TensorFile file = FindFile(SampleWeights(1, 1));
  file.tensors[1].view.shape = {3};
  file.tensors[3].view.shape = {1, 4};
  file.tensors[3].view.strides = {16, 4};
  file.tensors[5].view.shape = {2, 2};
  file.tensors[5].view.strides = {4, 8};
  const CompressorWeights weights = MakeWeights(file, {});
  CHECK_FALSE(weights.blocks[0].has_bias());
  REQUIRE(weights.notes.size() == 1);
  CHECK(weights.notes[0].text == "compress_tk.0.0.bias has 3 values for 4 rows and is dropped");
  CHECK(weights.blocks[1].bias.shape == std::vector<uint64_t>{4});
  CHECK(CopyContiguous(weights.blocks[2].bias) == CopyContiguous(file.tensors[5].view));
}

TEST_CASE("an unknown object among the weights is refused, elsewhere it is not") {
  TensorFile file = FindFile(SampleWeights(1), "model_state_dict/compressor/");
  file.opaque.push_back({"args", "an object of argparse.Namespace", true});
  CHECK(MakeWeights(file, {}).header.num_layers == 1);
  file.opaque.push_back({"model_state_dict/compressor/x", "an object of mine.Thing", true});
  CHECK(Refusal(file) == Finding::kForbiddenGlobal);
}

TEST_CASE("shares and untrained MLPs follow from the optimizer's state") {
  TensorFile file = FindFile(SampleWeights(1, 2), "model/");
  // The optimizer has state only for the six tensors of compress_tk.
  for (size_t i = 0; i < 6; ++i) {
    const TensorView view = file.tensors[i].view;
    file.tensors.push_back(
        {"optimizer_state_dict/state/" + std::to_string(i) + "/exp_avg", view, ""});
  }
  file.tensors.push_back({"model/attention.0.weight", file.tensors[1].view, ""});
  CheckpointShares shares;
  MakeWeights(file, {}, &shares);
  CHECK(shares.untrained == std::vector<std::string>{"compress_tv"});
  CHECK(shares.weight_bytes == 2 * shares.optimizer_bytes);
  CHECK(shares.ignored == std::vector<std::string>{"model/attention.0.weight"});
}

TEST_CASE("weights of a .bin take other orders and header numbers") {
  CheckpointOptions options;
  options.prefix_order = {"compress_iv", "compress_tk"};
  options.min_seq_len = 0;
  options.num_heads = 7;
  const CompressorWeights sample = SampleWeights();
  const CompressorWeights weights = Adjusted(sample, options);
  CHECK(weights.header.blocks_per_layer == 6);
  CHECK(weights.header.min_seq_len == 0);
  CHECK(weights.header.num_heads == 7);
  CHECK(weights.Block(1, 0).weight.data == sample.Block(1, 9).weight.data);
  CHECK(weights.Block(1, 5).weight.data == sample.Block(1, 2).weight.data);
  options.prefix_order = {"compress_xx"};
  CHECK_THROWS_AS(Adjusted(sample, options), Error);
}

}  // namespace kv::checkpoint_test
