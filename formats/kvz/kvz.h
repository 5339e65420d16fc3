// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by kvz.cc, references.cc

#include "formats/format.h"
#include "lib/core/archive/archive.h"

// Opens kvtool's own archive as a snapshot, for inspect, convert and the replays. What it refers to
// and what it restores are opened by OpenOptions::open.
namespace kv {

inline constexpr std::string_view kKvzFormat = "kvz";
Confidence ProbeKvz(const Source& source);
// With OpenOptions::metadata_only it decodes nothing, otherwise all tensors, into an unnamed
// temporary file.
Snapshot OpenKvz(Source source, const OpenOptions& options);

// Opens a snapshot, or an archive of one, as something that archives can refer to. Throws as
// OpenSnapshot.
std::shared_ptr<const Reference> OpenReference(const Source& source, const OpenOptions& options);
std::shared_ptr<const Reference> OpenReference(const std::string& path, const OpenOptions& options);
// Throws kLimit for one that no archive may be coded against, because its own chain is too long.
void RequireShortChain(const Reference& reference);
// Looks for the references of an archive among those of the options and in its folder, and gives it
// those that have the rows it needs; for the others it gives the reason, which decoding throws. The
// same for its profile. `path` is the archive's. Throws kLimit where a chain of references is too
// long.
void FindReferences(Archive& archive, const std::string& path, const OpenOptions& options);
// Throws the reason why a reference, or the profile, is not there.
void RequireReferences(const Archive& archive);
// The part of FindReferences that is about the profile.
void FindProfile(Archive& archive, const std::string& path, const OpenOptions& options);
// Looks for the profile that the `what` ("frame") at `path` needs: among those of the options, then
// in its folder. Throws kProfileMissing.
std::shared_ptr<const Profile> FindProfile(const ProfileName& name, std::string_view what,
                                           const std::string& path, const OpenOptions& options);
// Throws as Profile::Read, with the file's name.
std::shared_ptr<const Profile> OpenProfile(const std::string& path);

// Whether the source was archived without a decision, which flags can take when its tensors are
// read: which row of a batch, which axis counts tokens.
bool IsUndecided(const Archive& archive);

// Calls LoadTensors. If a wanted tensor has no chunks of its own (packed tiles, deflated members),
// it restores the whole source into an unnamed temporary file and calls that format's reader.
Snapshot LoadSnapshot(const Archive& archive, const Selection& wanted, const OpenOptions& options,
                      ThreadPool& pool, Progress* progress = nullptr);

}  // namespace kv
