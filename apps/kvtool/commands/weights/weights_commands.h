// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The common part of the verbs of `kvtool weights`.
#pragma once

#include <memory>
#include <string>

#include "apps/kvtool/command.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/line/options.h"
#include "formats/weights_file.h"

namespace kv {

// The verbs of one file; those of two files are defined beside the table of verbs.
std::unique_ptr<Command> MakeWeightsInspect();
std::unique_ptr<Command> MakeWeightsVerify();

// Options of checkpoints that `convert` and other verbs share, as texts that Resolve parses.
struct CheckpointFlags {
  std::string prefix_order, slot_order;
  uint32_t compression_factor = 0, num_heads = 0, head_dim = 0;
  std::string min_seq_len;
  bool text_only = false;

  void Declare(CommandLine& line);
  CheckpointOptions Resolve() const;  // throws kUsage
};

// --max-bytes of weights: limits what a checkpoint may inflate to, and the length of a stream.
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

// Prints notes of the reader and hints about the checkpoint as warnings.
void WarnAboutNotes(const WeightsFile& file, Console& console);

// Returns the fields of the header and of the names of the MLPs.
const Fields<CompressorWeights>& WeightsHeaderFields();
Value::List ContainerChoices();  // the names of all containers
// Returns "compress_tk, compress_tv (text only), slots 0,3,6, in model_state_dict/compressor".
std::string ChoiceText(const CompressorWeights& weights);

}  // namespace kv
