// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/tensors/tensor_writer.h"

namespace kv {

// Exports what lies beside K and V in an array container: positions, streams, sequences, token ids.
// FORMAT.md has the names.
void ExportCells(const Snapshot& snapshot, TensorExport& out);
// The reverse; the snapshot must already have its layers. Throws kBadField, kLimit.
void ImportCells(const TensorFile& file, Snapshot& snapshot);

// The sequences of each cell, as runs: "0*512", "0,1*60;1*36", "*3" for none.
std::string SequencesText(const std::vector<Cell>& cells);
// Throws kBadField unless the text describes exactly these cells.
void ReadSequences(std::string_view text, std::vector<Cell>& cells);

}  // namespace kv
