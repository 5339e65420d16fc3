// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/page_options.h"

#include <fmt/format.h>

#include <filesystem>

#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/line/options.h"
#include "lib/core/base/error.h"
#include "version.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

bool IsFileName(const std::string& path) { return fs::path(path).extension() == ".svg"; }

// Where each picture goes: to the file itself if it is the only one, else beside it under its own
// name; or into the folder.
std::vector<std::string> PlacesOf(const std::vector<report::PictureFile>& pictures,
                                  const std::string& svg) {
  if (pictures.size() == 1 && (IsFileName(svg) || DescriptorNamed(svg))) return {svg};
  std::vector<std::string> places;
  for (const report::PictureFile& picture : pictures) {
    const fs::path path(svg);
    places.push_back(
        IsFileName(svg)
            ? (path.parent_path() / (path.stem().string() + "-" + picture.name)).string()
            : (path / picture.name).string());
  }
  return places;
}

}  // namespace

void PageOptions::Declare(CommandLine& line, const std::string& of) {
  line.Add("--html-out", html, "Write a self-contained page" + of);
  line.Add("--svg-out", svg,
           "Write the page's pictures as SVG: into a folder, made if need be, each named for what "
           "it shows; or NAME.svg for a single one and NAME-....svg for several");
}

report::Origin OriginOf(const FileUser& command, const Console& console) {
  report::Origin origin{
      fmt::format("kvtool {}, commit {}", KVTOOL_VERSION, KVTOOL_GIT), console.command_line, {}};
  CommandFiles files;
  command.Files(files);
  for (const std::string& path : files.inputs()) {
    const HashedFile input = HashedFile::Of(Source::Open(path));
    origin.inputs.push_back(
        fmt::format("{}: {} bytes, XXH3 {}", Printable(input.file), input.bytes, input.xxh3));
  }
  return origin;
}

// What goes into a folder that is there is checked when it is known.
void PageOptions::Files(CommandFiles& files) const {
  files.Writes(html, "--html-out");
  std::error_code ignored;
  if (!fs::is_directory(svg, ignored)) files.Writes(svg, "--svg-out");
}

void PageOptions::Write(const report::Page& page, const FileUser& command, Console& console,
                        const OutputRules& rules) const {
  CheckedPlaces(page, command);  // before anything is written
  if (!html.empty()) WriteText(html, page.Text(OriginOf(command, console)), rules);
  WritePictures(page, command, console, rules);
}

std::vector<std::string> PageOptions::CheckedPlaces(const report::Page& page,
                                                    const FileUser& command) const {
  const std::vector<report::PictureFile>& pictures = page.pictures();
  if (svg.empty() || pictures.empty()) return {};
  if (DescriptorNamed(svg) && pictures.size() > 1) {
    throw Error(Finding::kUsage,
                fmt::format("--svg-out: {} pictures do not go into one stream", pictures.size()))
        .File(svg)
        .Hint("give a folder");
  }
  std::vector<std::string> places = PlacesOf(pictures, svg);
  CommandFiles files;
  command.Files(files);
  for (const std::string& place : places) {
    if (place != svg) files.Writes(place, "--svg-out");
  }
  files.Check();
  return places;
}

void PageOptions::WritePictures(const report::Page& page, const FileUser& command, Console& console,
                                const OutputRules& rules) const {
  if (svg.empty()) return;
  const std::vector<std::string> places = CheckedPlaces(page, command);
  if (places.empty()) return console.Warn(svg, "nothing to draw: no picture is written");
  std::error_code failed;
  if (!IsFileName(svg) && !DescriptorNamed(svg)) fs::create_directories(svg, failed);
  if (failed) throw Error(Finding::kWriteFailed, failed.message()).File(svg);
  for (size_t i = 0; i < places.size(); ++i) {
    WriteText(places[i], page.pictures()[i].text, rules);
    console.Say(fmt::format("{}: written", Printable(places[i])), 1);
  }
}

}  // namespace kv
