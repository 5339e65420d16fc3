// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/fields/fields.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/utf8.h"

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

// Returns the schema of a field's values, without the field's description.
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
  if (shape.kind == Kind::kList) {
    schema.Put("items", ShapeSchema(shape.of.front()));
    if (shape.length > 0) schema.Put("minItems", shape.length).Put("maxItems", shape.length);
  }
  if (shape.kind == Kind::kMap) schema.Put("additionalProperties", ShapeSchema(shape.of.front()));
  return schema;
}

// Returns the part of a schema that limits numbers and texts: in a list or map, that of its
// elements.
Value& ElementSchema(const FieldShape& shape, Value& schema) {
  const bool is_list = shape.kind == Kind::kList;
  if (!is_list && shape.kind != Kind::kMap) return schema;
  for (auto& [key, value] : *schema.get_if<Value::Object>()) {
    if (key == (is_list ? "items" : "additionalProperties")) {
      return ElementSchema(shape.of.front(), value);
    }
  }
  return schema;
}

Kind ElementKind(const FieldShape& shape) {
  return shape.of.empty() ? shape.kind : ElementKind(shape.of.front());
}

void PutLimits(const FieldShape& shape, const FieldOptions& options, Value& schema) {
  Value& element = ElementSchema(shape, schema);
  const Kind kind = ElementKind(shape);
  const auto put = [&](const std::string& key, double limit) {
    if (std::isnan(limit)) return;
    auto& members = *element.get_if<Value::Object>();
    std::erase_if(members, [&](const Value::Member& member) { return member.first == key; });
    element.Put(key, kind == Kind::kNumber ? Value(limit) : Value(static_cast<int64_t>(limit)));
  };
  const std::string of = kind == Kind::kText ? "Length" : "imum";
  put("min" + of, options.least);
  put("max" + of, options.most);
  put("exclusiveMinimum", options.above);
  if (options.items > 0) schema.Put("minItems", options.items);
  if (options.most_items > 0) schema.Put("maxItems", options.most_items);
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
  PutLimits(shape, options, schema);
  if (options.item != nullptr) {
    for (auto& [key, value] : members) {
      if (key != "items") continue;
      auto& item = *value.get_if<Value::Object>();
      item.emplace(item.begin(), "description", options.item);
    }
  }
  return schema;
}

bool HasRows(const FieldTable& fields);

bool HasRows(const FieldTable::Entry& entry) {
  const FieldShape& shape = entry.shape.of.empty() ? entry.shape : entry.shape.of.front();
  return entry.options.rows || (shape.fields != nullptr && HasRows(*shape.fields));
}

bool HasRows(const FieldTable& fields) {
  return std::any_of(fields.entries().begin(), fields.entries().end(),
                     [](const FieldTable::Entry& entry) { return HasRows(entry); });
}

const Value::List* ListIn(const Value* value) {
  return value == nullptr ? nullptr : value->get_if<Value::List>();
}

// Names come from foreign files: control characters are escaped, and a quote keeps a spreadsheet
// from taking a name such as "=cmd" for a formula.
std::string CellOfText(const std::string& text) {
  std::string cell = Printable(text);
  if (cell.size() > 1 && std::string_view("=+-@").find(cell[0]) != std::string_view::npos) {
    cell.insert(cell.begin(), '\'');
  }
  return cell;
}

// Collects rows. A null element only adds its columns, so that the header of a list does not depend
// on fields that its elements lack.
class RowCollector {
 public:
  void AddDocument(const FieldTable& fields, const Value& document) {
    std::vector<std::string> row;
    const Value::List* inputs = ListIn(document.Find("inputs"));
    Put("input", inputs == nullptr || inputs->empty() ? nullptr : inputs->front().Find("file"),
        row);
    if (HasRows(fields)) return AddRows(fields, &document, row);
    AddElement(fields, &document, row);
  }

  TextTable Take() {
    for (auto& row : table_.rows) row.resize(table_.head.size());
    const auto is_nameless = [](const std::vector<std::string>& row) { return row[0].empty(); };
    if (std::all_of(table_.rows.begin(), table_.rows.end(), is_nameless)) {
      table_.head.erase(table_.head.begin());
      for (auto& row : table_.rows) row.erase(row.begin());
    }
    return std::move(table_);
  }

 private:
  void AddRows(const FieldTable& fields, const Value* of, const std::vector<std::string>& outer) {
    for (const FieldTable::Entry& entry : fields.entries()) {
      if (!HasRows(entry) || HasMember(of, entry.options.unless)) continue;
      const Value* value = of == nullptr || entry.is_inline() ? of : of->Find(entry.name);
      if (entry.shape.kind != Kind::kList) {
        AddRows(*entry.shape.fields, value, outer);
        continue;
      }
      const Value::List* list = ListIn(value);
      if (list == nullptr) continue;
      const FieldTable& nested = *entry.shape.of.front().fields;
      const auto add = [&](const Value* element) {
        std::vector<std::string> row = outer;
        if (entry.options.rows) return AddElement(nested, element, std::move(row));
        PutFields(nested, element, "", row);
        AddRows(nested, element, row);
      };
      add(nullptr);
      for (const Value& element : *list) add(&element);
    }
  }

  void AddElement(const FieldTable& fields, const Value* of, std::vector<std::string> row) {
    PutFields(fields, of, "", row);
    if (of != nullptr) table_.rows.push_back(std::move(row));
  }

  void PutFields(const FieldTable& fields, const Value* of, const std::string& prefix,
                 std::vector<std::string>& row) {
    for (const FieldTable::Entry& entry : fields.entries()) {
      const Value* value = of == nullptr || entry.is_inline() ? of : of->Find(entry.name);
      const std::string name = prefix + std::string(entry.name);
      if (entry.shape.kind == Kind::kObject) {
        PutFields(*entry.shape.fields, value, entry.is_inline() ? prefix : name + ".", row);
      } else if (entry.shape.kind != Kind::kList && entry.shape.kind != Kind::kMap) {
        Put(name, value, row, entry.options.own_text);
      }
    }
  }

  static bool HasMember(const Value* of, std::string_view name) {
    const Value* member = of == nullptr || name.empty() ? nullptr : of->Find(name);
    return member != nullptr && !member->is_null();
  }

  void Put(const std::string& column, const Value* value, std::vector<std::string>& row,
           bool is_own = false) {
    const auto found = std::find(table_.head.begin(), table_.head.end(), column);
    const auto at = static_cast<size_t>(found - table_.head.begin());
    if (found == table_.head.end()) table_.head.push_back(column);
    if (value == nullptr || value->is_null()) return;
    row.resize(std::max(row.size(), at + 1));
    const std::string* text = value->get_if<std::string>();
    row[at] = text != nullptr && !is_own ? CellOfText(*text) : format::Plain(*value);
  }

  TextTable table_;
};

std::string CsvCell(const std::string& cell) {
  const bool is_trimmed = !cell.starts_with(' ') && !cell.ends_with(' ');
  if (is_trimmed && cell.find_first_of(",\"\r\n") == cell.npos) return cell;
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

void FieldTable::AddTo(Value::List& required, Parts& parts) const {
  for (const Entry& entry : entries_) {
    if (!entry.is_inline()) {
      // Parts that are never present together may share a field.
      const bool is_there = std::any_of(parts.properties.begin(), parts.properties.end(),
                                        [&](const auto& one) { return one.first == entry.name; });
      if (is_there) continue;
      if (!entry.options.absent) required.emplace_back(entry.name);
      parts.properties.emplace_back(entry.name, FieldSchema(entry));
    } else if (!entry.shape.nullable) {
      entry.shape.fields->AddTo(required, parts);
    } else {
      Value::List together;
      entry.shape.fields->AddTo(together, parts);
      if (together.size() < 2) continue;
      const std::string first = *together.front().get_if<std::string>();
      together.erase(together.begin());
      parts.dependent.emplace_back(first, std::move(together));
    }
  }
}

Value FieldTable::Schema() const {
  Parts parts;
  AddTo(parts.required, parts);
  Value schema = Value::Object{{"type", "object"}, {"required", std::move(parts.required)}};
  if (!parts.dependent.empty()) schema.Put("dependentRequired", std::move(parts.dependent));
  schema.Put("properties", std::move(parts.properties));
  return schema;
}

void AddCells(const FieldTable::Entry& entry, const Value& value, std::vector<std::string>& row) {
  if (!entry.is_inline()) {
    const auto* number = value.get_if<double>();
    const bool is_null = number != nullptr && entry.options.nullable && !std::isfinite(*number);
    row.push_back(value.is_null() || is_null ? "-" : entry.options.format(value));
    return;
  }
  for (const FieldTable::Entry& part : entry.shape.fields->entries()) {
    if (!part.has_columns()) continue;
    const Value* of_part = part.is_inline() ? &value : value.Find(part.name);
    AddCells(part, of_part == nullptr ? Value() : *of_part, row);
  }
}

std::vector<std::string> TextHead(const FieldTable& fields) {
  std::vector<std::string> head;
  for (const FieldTable::Entry& entry : fields.entries()) {
    if (entry.is_inline()) {
      for (std::string& name : TextHead(*entry.shape.fields)) head.push_back(std::move(name));
    } else if (!entry.options.column.empty()) {
      head.emplace_back(entry.options.column);
    }
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

TextTable RowTable(const FieldTable& fields, const Value& documents) {
  RowCollector rows;
  for (const Value& document : *ListIn(&documents)) rows.AddDocument(fields, document);
  return rows.Take();
}

std::string Csv(const TextTable& table) {
  std::string text = CsvLine(table.head);
  for (const auto& row : table.rows) text += CsvLine(row);
  return text;
}

}  // namespace kv
