// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/registry.h"

namespace kv::llama_state {

// llama.cpp session and sequence files, and the two in-memory blobs; see FORMAT.md. Rows are given
// as one head (heads_known = false): the file does not say how they divide.
Confidence Probe(const Source& source);
// A file with its header (magic ggsn or ggsq).
Snapshot Open(Source source, const OpenOptions& options);
// What llama_state_seq_get_data and llama_state_get_data return: never detected, only asked for.
Snapshot OpenSeqBlob(Source source, const OpenOptions& options);
Snapshot OpenCtxBlob(Source source, const OpenOptions& options);

}  // namespace kv::llama_state
