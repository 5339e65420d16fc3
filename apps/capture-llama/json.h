// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kv::capture {

// Reads a document from front to back and builds no tree, so that a plan of any size needs no more
// memory than its text. Every function reads one value. Throws Failure(kInvalid) with the offset.
class JsonReader {
 public:
  // `name` names the document in errors; the text must outlive the reader.
  JsonReader(std::string_view text, std::string name) : text_(text), name_(std::move(name)) {}

  // Calls member(key) for each member, which must read its value.
  template <class F>
  void Object(F&& member) {
    if (Opens('{', '}')) return;
    do {
      const std::string key = String();
      Expect(':');
      member(std::string_view(key));
    } while (Goes('}'));
  }
  // Calls element() for each element, which must read it.
  template <class F>
  void Array(F&& element) {
    if (Opens('[', ']')) return;
    do {
      element();
    } while (Goes(']'));
  }
  std::string String();
  int64_t Integer(int64_t least, int64_t most);
  bool Null();  // reads a null, if one follows
  void Skip();  // skips any value
  void End();   // only white space may follow

  [[noreturn]] void Refuse(const std::string& what) const;

 private:
  char Next();
  void Expect(char wanted);
  bool Opens(char open, char close);  // reads `open`; returns true if `close` follows at once
  bool Goes(char close);              // reads `close` or a comma; returns true after a comma
  bool Word(std::string_view word);
  uint32_t Escape();
  std::string_view Number();

  std::string_view text_;
  std::string name_;
  size_t at_ = 0;
  int depth_ = 0;
};

// Returns text in quotes; bytes that are not UTF-8 become U+FFFD.
std::string Quoted(std::string_view text);

// An object under construction, with its members in the order of adding.
class JsonObject {
 public:
  JsonObject& Add(std::string_view key, std::string_view text) { return Raw(key, Quoted(text)); }
  JsonObject& Add(std::string_view key, const char* text) { return Raw(key, Quoted(text)); }
  JsonObject& Add(std::string_view key, int64_t value) { return Raw(key, std::to_string(value)); }
  JsonObject& Add(std::string_view key, double value);  // null unless finite
  JsonObject& Add(std::string_view key, bool value) { return Raw(key, value ? "true" : "false"); }
  JsonObject& Add(std::string_view key, const JsonObject& value) { return Raw(key, value.Line()); }
  // Adds a value that is JSON already.
  JsonObject& Raw(std::string_view key, std::string_view value);

  std::string Line() const { return "{" + members_ + "}"; }
  std::string Document() const { return "{\n  " + lines_ + "\n}\n"; }  // one line per member

 private:
  std::string members_, lines_;
};

// Returns the shortest text that reads back as the same number.
std::string Shortest(double value);

}  // namespace kv::capture
