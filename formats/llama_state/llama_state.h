// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by llama_state_reader.cc, llama_state_writer.cc

#include "formats/format.h"

namespace kv::llama_state {

// llama.cpp session and sequence files, and the two in-memory blobs; see FORMAT.md. Rows are given
// as one head (heads_known = false): the file does not say how they divide.
Confidence Probe(const Source& source);
// A file with its header (magic ggsn or ggsq).
Snapshot Open(Source source, const OpenOptions& options);
// What llama_state_seq_get_data and llama_state_get_data return; only --from selects these.
Snapshot OpenSeqBlob(Source source, const OpenOptions& options);
Snapshot OpenCtxBlob(Source source, const OpenOptions& options);

// The state of one sequence (SEQ), of the layout that storage["version"] names or else the newest;
// V is ordered as storage["v_order"] says. Before it writes anything, it throws kUnsupportedLayout,
// kUnsupportedDtype and the like for what the format cannot express.
void WriteSequence(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
// The whole context (SESSION), with every sequence; needs the architecture's name.
void WriteSession(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
std::vector<std::string> NotKept(const Snapshot& snapshot);

}  // namespace kv::llama_state
