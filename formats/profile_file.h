// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/format.h"
#include "lib/core/archive/records.h"
#include "lib/core/codec/profiled/profile.h"

// Finds the profiles (.kvp) that archives and frames name by their hash.
namespace kv {

// Throws as Profile::Read, with the file's name.
std::shared_ptr<const Profile> OpenProfile(const std::string& path);

// Looks for the profile that the `what` ("archive") at `path` needs: among those of the options,
// then in its folder. Throws kProfileMissing.
std::shared_ptr<const Profile> FindProfile(const ProfileName& name, std::string_view what,
                                           const std::string& path, const OpenOptions& options);

}  // namespace kv
