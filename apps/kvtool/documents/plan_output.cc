// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/documents/plan_output.h"

#include "apps/kvtool/line/options.h"

namespace kv {

void WritePlanDocument(const std::string& path, const OutputRules& rules,
                       nlohmann::ordered_json head,
                       const std::function<void(const EmitPlanEvent&)>& events) {
  head["unit"] = "position";
  head["applied"] = "before the next token";
  std::string text = JsonText(head, -1);
  text.back() = ',';  // the document continues
  text += "\"events\":[";
  AtomicFile file(path, rules);
  std::string_view separator;
  events([&](const eviction::PlanEvent& event) {
    text += separator;
    text += JsonText(ToJson(eviction::PlanEventFields().Object(event)), -1);
    separator = ",";
    file.Write(AsBytes(text));
    text.clear();
  });
  file.Write(AsBytes(text + "]}\n"));
  file.Commit();
}

}  // namespace kv
