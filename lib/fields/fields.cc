// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/fields/fields.h"

#include <algorithm>
#include <cmath>

namespace kv {
namespace {

using Kind = FieldShape::Kind;

std::string_view TypeName(Kind kind) {
  switch (kind) {
    case Kind::kBool:
      return "boolean";
    case Kind::kCount:
    case Kind::kInteger:
      return "integer";
    case Kind::kNumber:
      return "number";
    case Kind::kText:
      return "string";
    case Kind::kList:
      return "array";
    case Kind::kMap:
    case Kind::kObject:
      return "object";
    case Kind::kAny:
      break;
  }
  return {};
}

// A schema of exactly the values that a shape has, without the field's sentence.
Value ShapeSchema(const FieldShape& shape) {
  Value schema = shape.kind == Kind::kObject && shape.fields != nullptr ? shape.fields->Schema()
                                                                        : Value(Value::Object());
  auto& members = *schema.get_if<Value::Object>();
  const std::string_view type = TypeName(shape.kind);
  if (members.empty() && !type.empty()) schema.Put("type", type);
  if (shape.nullable && !type.empty()) {
    members.front().second = Value::List{Value(type), Value("null")};
  }
  if (shape.kind == Kind::kCount) schema.Put("minimum", 0);
  if (shape.kind == Kind::kList) schema.Put("items", ShapeSchema(shape.of.front()));
  if (shape.kind == Kind::kMap) schema.Put("additionalProperties", ShapeSchema(shape.of.front()));
  return schema;
}

void PutLimits(Kind kind, const FieldOptions& options, Value& schema) {
  const auto put = [&](const std::string& key, double limit) {
    if (std::isnan(limit)) return;
    auto& members = *schema.get_if<Value::Object>();
    std::erase_if(members, [&](const Value::Member& member) { return member.first == key; });
    const bool is_whole = kind != Kind::kNumber && kind != Kind::kMap;
    schema.Put(key, is_whole ? Value(static_cast<int64_t>(limit)) : Value(limit));
  };
  const std::string of = kind == Kind::kList ? "Items" : kind == Kind::kText ? "Length" : "imum";
  put("min" + of, options.least);
  put("max" + of, options.most);
  put("exclusiveMinimum", options.above);
}

Value FieldSchema(const FieldTable::Entry& entry) {
  const FieldOptions& options = entry.options;
  FieldShape shape = entry.shape;
  shape.nullable = (shape.nullable && !options.absent) || options.nullable;
  Value schema;
  if (!options.choices.empty()) {
    Value::List choices = options.choices;
    if (shape.nullable) choices.push_back(nullptr);
    schema = Value::Object{{"enum", std::move(choices)}};
  } else if (!options.schema.is_null()) {
    schema = options.schema;
  } else {
    schema = ShapeSchema(shape);
  }
  auto& members = *schema.get_if<Value::Object>();
  members.emplace(members.begin(), "description", entry.text);
  if (options.pattern != nullptr) schema.Put("pattern", options.pattern);
  PutLimits(shape.kind, options, schema);
  if (options.item != nullptr) {
    for (auto& [key, value] : members) {
      if (key != "items") continue;
      auto& item = *value.get_if<Value::Object>();
      item.emplace(item.begin(), "description", options.item);
    }
  }
  return schema;
}

std::string CsvCell(const std::string& cell) {
  if (cell.find_first_of(",\"\r\n") == cell.npos) return cell;
  std::string quoted = "\"";
  for (const char c : cell) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string CsvLine(const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) line += (i == 0 ? "" : ",") + CsvCell(cells[i]);
  return line + "\r\n";
}

}  // namespace

void FieldTable::AddTo(bool is_required, Value::List& required, Value::Object& properties) const {
  for (const Entry& entry : entries_) {
    if (entry.is_inline()) {
      entry.shape.fields->AddTo(is_required && !entry.shape.nullable, required, properties);
      continue;
    }
    if (is_required && !entry.options.absent) required.emplace_back(entry.name);
    properties.emplace_back(entry.name, FieldSchema(entry));
  }
}

Value FieldTable::Schema() const {
  Value::List required;
  Value::Object properties;
  AddTo(true, required, properties);
  return Value::Object{
      {"type", "object"}, {"required", std::move(required)}, {"properties", std::move(properties)}};
}

std::vector<std::string> TextHead(const FieldTable& fields) {
  std::vector<std::string> head;
  for (const FieldTable::Entry& entry : fields.entries()) {
    if (!entry.options.column.empty()) head.emplace_back(entry.options.column);
  }
  return head;
}

TextTable WithoutEmptyColumns(TextTable table) {
  for (size_t column = table.head.size(); column-- > 0;) {
    const auto is_empty = [&](const std::vector<std::string>& row) { return row[column] == "-"; };
    if (!std::all_of(table.rows.begin(), table.rows.end(), is_empty)) continue;
    const auto at = static_cast<std::ptrdiff_t>(column);
    table.head.erase(table.head.begin() + at);
    for (auto& row : table.rows) row.erase(row.begin() + at);
  }
  return table;
}

std::string Csv(const TextTable& table) {
  std::string text = CsvLine(table.head);
  for (const auto& row : table.rows) text += CsvLine(row);
  return text;
}

}  // namespace kv
