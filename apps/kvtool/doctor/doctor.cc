// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/doctor/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "formats/kvz/kvz.h"
#include "formats/run/run.h"
#include "formats/torch/torch.h"

namespace kv {
namespace {

// A trace of arrays may have K and V, too; as pickles, caches and attentions look alike.
bool AskFirstForTrace(const Source& source) {
  return !source.files.empty() && !LooksLikeTorch(source);
}

void Look(const std::string& path, std::optional<uint64_t> most, ThreadPool& pool, Diagnosis& out) {
  if (OpenRun(path)) return DiagnoseRun(path, pool, out);
  const bool is_there = path == "-" || std::filesystem::exists(path);
  if (!is_there) {
    Source stem;
    stem.path = path;
    if (DiagnoseOther(stem, out)) return;
  }
  const Source source = Source::Open(path, most);
  out.bytes = source.total_bytes();
  try {
    if (ProbeKvz(source) != Confidence::kNo) return DiagnoseArchive(source, pool, out);
    if (AskFirstForTrace(source) && DiagnoseOther(source, out)) return;
    DiagnoseSnapshot(source, pool, out);
  } catch (Error& error) {
    error.File(path);
    if (DiagnoseOther(source, out)) return;
    out.Fail(error);
    DiagnoseUnknown(source, error, out);
  }
}

}  // namespace

void Diagnosis::Find(std::string finding) {
  findings.push_back(std::move(finding));
  sound = Sound::kNo;
  status = Worse(status, kVerdict);
}

void Diagnosis::Fail(const Error& why) {
  error = why;
  status = StatusOf(why.code());
}

Diagnosis Diagnose(const std::string& path, std::optional<uint64_t> most, ThreadPool& pool) {
  Diagnosis out;
  out.file = path;
  out.max_bytes = most.value_or(kMostUnpacked);
  try {
    Look(path, most, pool, out);
    if (path == "-") out.next.clear();  // a stream cannot be read again
  } catch (Error& error) {
    out.Fail(error.File(path));
    std::error_code ignored;
    const bool is_there = path == "-" || std::filesystem::exists(path, ignored);
    out.kind = is_there ? "unknown" : "missing";
    out.what = is_there ? "not known: " + Printable(error.message())
                        : "nothing: there is no file or folder of this name";
    if (is_there) return out;
    std::filesystem::path folder = std::filesystem::path(path).parent_path();
    while (!folder.empty() && !std::filesystem::exists(folder, ignored) &&
           folder != folder.parent_path()) {
      folder = folder.parent_path();
    }
    out.next.push_back(
        {"ls " + ShellWord(folder.empty() ? "." : folder.string()), "what there is instead", ""});
  }
  return out;
}

std::string ShellWord(const std::string& path) {
  const std::string safe = path.starts_with('-') && path != "-" ? "./" + path : path;
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_./+:@%,-=").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!safe.empty() && std::all_of(safe.begin(), safe.end(), is_plain)) return safe;
  // What the console would show otherwise is written so that a shell reads it back.
  const bool odd = Printable(safe) != safe;
  std::string quoted = odd ? "$'" : "'";
  for (const char c : safe) {
    const auto byte = static_cast<unsigned char>(c);
    if (odd && (byte < 0x20 || byte >= 0x7f)) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else if (c == '\'' || (odd && c == '\\')) {
      quoted += odd ? std::string("\\") + c : "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string Grouped(uint64_t number) {
  std::string digits = std::to_string(number);
  for (size_t i = digits.size(); i > 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

std::string FreeName(const std::string& path) {
  std::string base = path;
  while (base.size() > 1 && base.ends_with('/')) base.pop_back();
  std::string name = base;
  std::error_code ignored;
  for (int i = 2; std::filesystem::exists(name, ignored); ++i) {
    const std::filesystem::path whole(base);
    const std::string extension = whole.extension().string();
    name = base.substr(0, base.size() - extension.size()) + fmt::format("-{}", i) + extension;
  }
  return name;
}

}  // namespace kv
