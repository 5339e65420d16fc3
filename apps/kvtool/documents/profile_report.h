// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "apps/kvtool/console/console.h"
#include "lib/core/codec/profiled/profile.h"
#include "lib/fields/fields.h"

// What `train` and `inspect` say of a profile.
namespace kv {

// "profile of smollm, 60 tensors, 152.3 KiB".
std::string ProfileSummary(const Profile& profile);
// With a table of its entries.
std::string ProfileText(const Profile& profile);
const Fields<Profile>& ProfileFields();

}  // namespace kv
