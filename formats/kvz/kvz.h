// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by kvz.cc, references.cc

#include <span>

#include "formats/format.h"
#include "lib/core/archive/archive.h"

// Opens kvtool's own archive as a snapshot, for inspect, convert and the replays. OpenOptions::open
// opens its references and the source that it restores.
namespace kv {

inline constexpr std::string_view kKvzFormat = "kvz";
Confidence ProbeKvz(const Source& source);
// Decodes all tensors into an unnamed temporary file, or nothing with OpenOptions::metadata_only.
Snapshot OpenKvz(Source source, const OpenOptions& options);

// Returns the hash of a source as an archive of it has it.
uint64_t HashSource(const Source& source);
// Opens a snapshot, or its archive, as a reference. Throws what OpenSnapshot throws.
std::shared_ptr<const Reference> OpenReference(const Source& source, const OpenOptions& options);
std::shared_ptr<const Reference> OpenReference(const std::string& path, const OpenOptions& options);
// Throws kLimit if the reference's own chain is so long that no archive may be coded against it.
void RequireShortChain(const Reference& reference);
// Finds the references of an archive among those of the options and in its folder, and sets
// those that have the rows it needs; for the others it sets the reason, which decoding throws. Does
// the same for its profile. `path` is the archive's. Throws kLimit if a chain of references is too
// long.
void FindReferences(Archive& archive, const std::string& path, const OpenOptions& options);
// Throws the reason if a reference or the profile is missing.
void RequireReferences(const Archive& archive);
// Finds only the profile, in the same places as FindReferences.
void FindProfile(Archive& archive, const std::string& path, const OpenOptions& options);
// Finds the transform whose hash an approximated archive names, first among those of the options,
// then in the archive's folder; sets the reason if there is none. Throws what ReadTransform throws
// for the file with this hash.
void FindTransform(Archive& archive, const std::string& path, const OpenOptions& options);
// Returns "LOSSY: K and V between ... are approximated by ...", for facts and messages.
std::string DescribeLoss(const Approximation& approximation);
// Finds the profile that the file at `path` needs, first among those of the options, then in the
// file's folder. `what` names the kind of file in errors ("frame"). Throws kProfileMissing.
std::shared_ptr<const Profile> FindProfile(const ProfileName& name, std::string_view what,
                                           const std::string& path, const OpenOptions& options);
// Throws what Profile::Read throws, with the file's name.
std::shared_ptr<const Profile> OpenProfile(const std::string& path);

// Calls LoadTensors. If a requested tensor has no chunks of its own (packed tiles, deflated
// members), restores the whole source into an unnamed temporary file and calls that format's
// reader.
Snapshot LoadSnapshot(const Archive& archive, const Selection& wanted, const OpenOptions& options,
                      ThreadPool& pool, Progress* progress = nullptr);

}  // namespace kv
