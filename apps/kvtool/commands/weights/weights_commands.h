// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <string>

#include "apps/kvtool/command.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/result_fields.h"
#include "apps/kvtool/line/options.h"
#include "formats/weights_file.h"

namespace kv {

// The verbs of one file; those of two are beside the table of verbs.
std::unique_ptr<Command> MakeWeightsInspect();
std::unique_ptr<Command> MakeWeightsVerify();

// Options of checkpoints that `convert` and the others share; as texts, parsed by Resolve.
struct CheckpointFlags {
  std::string prefix_order, slot_order;
  uint32_t compression_factor = 0, num_heads = 0, head_dim = 0;
  std::string min_seq_len;
  bool text_only = false;

  void Declare(CommandLine& line);
  CheckpointOptions Resolve() const;  // throws kUsage
};

// --max-bytes of weights: what a checkpoint may inflate to, and how long a stream may be.
struct WeightsLimit {
  SizeLimit limit;

  void Declare(CommandLine& line);
  Source OpenSource(const std::string& path) const;
  WeightsFile Open(const std::string& path, WeightsOpenOptions options) const;
  WeightsVerdict Verify(const Source& source) const;
};

// A verb of `kvtool weights`.
class WeightsCommand : public Command {
 protected:
  CheckpointFlags checkpoint_;
  WeightsLimit limit_;
};

// Notes of the reader and hints of the checkpoint as warnings on the console.
void WarnOf(const WeightsFile& file, Console& console);

// The numbers of the header, and what names the MLPs.
const Fields<CompressorWeights>& WeightsHeaderFields();
Value::List ContainerChoices();  // the names of all containers
// "compress_tk, compress_tv (text only), slots 0,3,6, in model_state_dict/compressor".
std::string ChoiceText(const CompressorWeights& weights);

}  // namespace kv
