// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <iterator>
#include <limits>
#include <span>
#include <type_traits>

#include "lib/fields/value.h"

// A result is a struct with one table of fields. JSON, its schema, console tables, CSV and HTML
// tables are made from it. A table is made once and lives as long as the program:
//
//   const Fields<Damage>& DamageFields() {
//     static const Fields<Damage> fields = {
//         {"part", "The part of the archive", [](const Damage& damage) { return Place(damage); }},
//         {"archive_offset", "Offset in the archive, in bytes", &Damage::offset},
//         {"chunk", "The chunk that is damaged", &Damage::chunk, ChunkFields(), Absent()}};
//     return fields;
//   }
//
// A getter is a pointer to a member or a function of the result. The type that it returns is the
// type in the schema: bool; a count (unsigned) or an integer; a number; text. An empty
// std::optional becomes null (with .absent, its key is omitted), std::vector a list, and std::map
// an object of any keys. A nested struct becomes an object and has its own table.
namespace kv {

struct FieldOptions {
  bool absent = false;           // an empty optional omits the key instead of being null
  std::vector<Value> choices{};  // the only permitted values; nullptr among them permits null
  const char* pattern = nullptr;
  // Limits of a number, or of the length of a text. For a list or a map they apply to its elements.
  double least = std::numeric_limits<double>::quiet_NaN();
  double most = std::numeric_limits<double>::quiet_NaN();
  double above = std::numeric_limits<double>::quiet_NaN();  // every number is greater than this
  bool nullable = false;       // a number is null if it is not finite; a Value may be null
  const char* item = nullptr;  // description of each element of a list
  size_t items = 0;            // least number of elements of a list
  size_t most_items = 0;       // greatest number of elements; 0: no limit
  bool rows = false;           // the elements of this list are the rows of the document's CSV
  std::string_view unless{};   // a member whose elements are the rows instead, if it exists
  // text by this program: CSV need not protect it against being read as a formula
  bool own_text = false;
  std::string_view column{};  // heading in tables of text; empty: no column
  Format format = format::Plain;
  Value schema{};  // the complete schema of a getter that returns a Value
};

// Options by name, which keep the rows of a table short: Nullable(AtLeast(0)).
inline FieldOptions Absent(FieldOptions options = {}) {
  options.absent = true;
  return options;
}
inline FieldOptions Nullable(FieldOptions options = {}) {
  options.nullable = true;
  return options;
}
inline FieldOptions AtLeast(double least, FieldOptions options = {}) {
  options.least = least;
  return options;
}
inline FieldOptions CsvRows(FieldOptions options = {}) {
  options.rows = true;
  return options;
}
inline FieldOptions Items(size_t least) { return {.items = least}; }
inline FieldOptions Heading(std::string_view column, Format format = format::Plain) {
  return {.column = column, .format = format};
}
template <typename... Word>
FieldOptions OneOf(Word... words) {
  return {.choices = {Value(words)...}};
}

class FieldTable;

// The type of a field's values in terms of schemas.
struct FieldShape {
  enum class Kind { kAny, kBool, kCount, kInteger, kNumber, kText, kList, kMap, kObject };
  Kind kind = Kind::kAny;
  bool nullable = false;
  std::vector<FieldShape> of{};        // shape of the elements of a list or map
  size_t length = 0;                   // length of a list with a fixed length; 0: any
  const FieldTable* fields = nullptr;  // fields of an object
};

// The part of a table that does not depend on the type of its results: names, sentences and shapes.
class FieldTable {
 public:
  struct Entry {
    std::string_view name, text;
    FieldShape shape;
    FieldOptions options;

    bool is_inline() const { return name.empty(); }
    bool has_columns() const { return is_inline() || !options.column.empty(); }
  };
  const std::deque<Entry>& entries() const { return entries_; }
  // Returns the schema of an object with these fields.
  Value Schema() const;

 protected:
  std::deque<Entry> entries_;

 private:
  struct Parts {
    Value::List required;
    Value::Object properties;
    Value::Object dependent;  // for the first key of each optional part, all keys of that part
  };
  void AddTo(Value::List& required, Parts& parts) const;
};

namespace fields_internal {

template <typename T>
struct Wrapped : std::false_type {};
template <typename T>
struct Wrapped<std::optional<T>> : std::true_type {
  using Inner = T;
};
template <typename T>
struct Listed : std::false_type {};
template <typename T, typename A>
struct Listed<std::vector<T, A>> : std::true_type {
  using Inner = T;
  static constexpr size_t kLength = 0;
};
template <typename T, size_t N>
struct Listed<std::array<T, N>> : std::true_type {
  using Inner = T;
  static constexpr size_t kLength = N;
};
template <typename T>
struct Listed<std::span<T>> : std::true_type {
  using Inner = std::remove_cv_t<T>;
  static constexpr size_t kLength = 0;
};
template <typename T>
struct Mapped : std::false_type {};
template <typename T>
struct Mapped<std::map<std::string, T>> : std::true_type {
  using Inner = T;
};

template <typename R>
FieldShape MakeShape(const FieldTable* nested) {
  using Kind = FieldShape::Kind;
  if constexpr (Wrapped<R>::value) {
    FieldShape shape = MakeShape<typename Wrapped<R>::Inner>(nested);
    shape.nullable = true;
    return shape;
  } else if constexpr (std::is_pointer_v<R> && std::is_class_v<std::remove_pointer_t<R>>) {
    FieldShape shape = MakeShape<std::remove_cv_t<std::remove_pointer_t<R>>>(nested);
    shape.nullable = true;
    return shape;
  } else if constexpr (Listed<R>::value) {
    return {Kind::kList, false, {MakeShape<typename Listed<R>::Inner>(nested)}, Listed<R>::kLength};
  } else if constexpr (Mapped<R>::value) {
    return {Kind::kMap, false, {MakeShape<typename Mapped<R>::Inner>(nested)}};
  } else if constexpr (std::same_as<R, Value>) {
    return {Kind::kAny};
  } else if constexpr (std::same_as<R, bool>) {
    return {Kind::kBool};
  } else if constexpr (std::unsigned_integral<R>) {
    return {Kind::kCount};
  } else if constexpr (std::signed_integral<R>) {
    return {Kind::kInteger};
  } else if constexpr (std::floating_point<R>) {
    return {Kind::kNumber};
  } else if constexpr (std::convertible_to<R, std::string_view>) {
    return {Kind::kText};
  } else {
    return {Kind::kObject, false, {}, 0, nested};
  }
}

}  // namespace fields_internal

// The fields of T, in the order in which they are written.
template <typename T>
class Fields : public FieldTable {
 public:
  struct Field {
    Entry entry;
    std::function<Value(const T&)> get;

    template <typename Getter>
    Field(std::string_view name, std::string_view text, Getter getter, FieldOptions options = {})
        : entry{name, text, fields_internal::MakeShape<Result<Getter>>(nullptr),
                std::move(options)},
          get([getter](const T& of) { return Value(std::invoke(getter, of)); }) {}

    template <typename Getter, typename U>
    Field(std::string_view name, std::string_view text, Getter getter, const Fields<U>& nested,
          FieldOptions options = {})
        : entry{name, text, fields_internal::MakeShape<Result<Getter>>(&nested),
                std::move(options)},
          get([getter, &nested](const T& of) { return Nested(std::invoke(getter, of), nested); }) {}
  };

  // Writes the fields of a part among those of the whole, or none of them if the part is missing.
  // Parts of which only one is ever present may have fields of the same name.
  template <typename Getter, typename U>
  static Field Inline(Getter getter, const Fields<U>& part) {
    return Field("", "", getter, part);
  }
  // A column that exists only in text tables.
  template <typename Getter>
  static Field Column(std::string_view heading, Getter getter, Format format = format::Plain) {
    return Field(heading, "", std::move(getter), {.column = heading, .format = format});
  }
  // Inlines the fields of another table of T.
  static Field Inline(const Fields& others) {
    return Field(
        "", "", [](const T& of) -> const T& { return of; }, others);
  }

  Fields(std::initializer_list<Field> fields) {
    for (const Field& field : fields) Add(field);
  }
  void Add(Field field) {
    entries_.push_back(std::move(field.entry));
    getters_.push_back(std::move(field.get));
  }

  // Returns a result as a JSON object.
  Value Object(const T& of) const {
    Value::Object object;
    object.reserve(getters_.size());
    for (size_t i = 0; i < getters_.size(); ++i) {
      Value value = getters_[i](of);
      if (entries_[i].is_inline()) {
        if (auto* part = value.get_if<Value::Object>()) {
          object.insert(object.end(), std::make_move_iterator(part->begin()),
                        std::make_move_iterator(part->end()));
        }
      } else if (!value.is_null() || !entries_[i].options.absent) {
        object.emplace_back(entries_[i].name, std::move(value));
      }
    }
    return object;
  }
  // Returns the value of one field.
  Value Get(size_t field, const T& of) const { return getters_[field](of); }

 private:
  template <typename Getter>
  using Result = std::remove_cvref_t<std::invoke_result_t<Getter, const T&>>;

  template <typename R, typename U>
  static Value Nested(const R& result, const Fields<U>& fields) {
    using Plain = std::remove_cvref_t<R>;
    if constexpr (fields_internal::Wrapped<Plain>::value || std::is_pointer_v<Plain>) {
      return result ? Nested(*result, fields) : Value();
    } else if constexpr (fields_internal::Listed<Plain>::value) {
      Value::List list;
      for (const auto& element : result) list.push_back(Nested(element, fields));
      return list;
    } else if constexpr (fields_internal::Mapped<Plain>::value) {
      Value::Object object;
      for (const auto& [key, element] : result) object.emplace_back(key, Nested(element, fields));
      return object;
    } else {
      return fields.Object(result);
    }
  }

  std::vector<std::function<Value(const T&)>> getters_;
};

// Returns a text, or nullopt if it is empty; given a member, returns a getter that does so.
inline std::optional<std::string> IfAny(std::string_view text) {
  return text.empty() ? std::nullopt : std::optional(std::string(text));
}
template <typename T>
auto IfAny(std::string T::*member) {
  return [member](const T& of) { return IfAny(of.*member); };
}

// Rows of text with a heading per column, as the console, CSV and pages show results.
struct TextTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

void AddCells(const FieldTable::Entry& entry, const Value& value, std::vector<std::string>& row);

// Returns a row for a result. Columns are the fields that have a heading, including those of
// inlined parts; a null is "-".
template <typename T>
std::vector<std::string> TextRow(const Fields<T>& fields, const T& of) {
  std::vector<std::string> row;
  for (size_t i = 0; i < fields.entries().size(); ++i) {
    const FieldTable::Entry& entry = fields.entries()[i];
    if (entry.has_columns()) AddCells(entry, fields.Get(i, of), row);
  }
  return row;
}

// Removes columns in which no row has a value.
TextTable WithoutEmptyColumns(TextTable table);
std::vector<std::string> TextHead(const FieldTable& fields);

template <typename T>
TextTable MakeTextTable(const Fields<T>& fields, std::span<const std::type_identity_t<T>> results) {
  TextTable table = {TextHead(fields), {}};
  for (const T& result : results) table.rows.push_back(TextRow(fields, result));
  return WithoutEmptyColumns(std::move(table));
}

// Returns a row for K and one for V of each layer that has them, beginning with the layer's number
// and the tensor's name. `is_shown` can exclude tensors.
template <typename T, typename Layer>
TextTable TableByTensor(const Fields<T>& fields, const std::vector<Layer>& layers,
                        const std::array<const char*, 2>& names,
                        bool (*is_shown)(const T&) = nullptr) {
  TextTable table = {TextHead(fields), {}};
  table.head.insert(table.head.begin(), {"layer", "kv"});
  for (const Layer& layer : layers) {
    for (const auto& [tensor, name] : {std::pair(&layer.k, names[0]), {&layer.v, names[1]}}) {
      if (!*tensor || (is_shown != nullptr && !is_shown(**tensor))) continue;
      std::vector<std::string>& row = table.rows.emplace_back(TextRow(fields, **tensor));
      row.insert(row.begin(), {std::to_string(layer.layer), name});
    }
  }
  return table;
}

// Returns the rows of documents with these fields as CSV: the elements of their lists that are
// marked as rows, each preceded by the fields of the enclosing elements, or else the documents
// themselves. A column is named after its field, prefixed by the names of the enclosing objects; a
// null is an empty cell, and lists have no columns. The first column names the document's input, if
// there is one.
TextTable RowTable(const FieldTable& fields, const Value& documents);

// Formats a table by RFC 4180: cells with a comma, a quote or a line break are quoted.
std::string Csv(const TextTable& table);

}  // namespace kv
