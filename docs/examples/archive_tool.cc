// SPDX-License-Identifier: Apache-2.0
// Does what `kvtool compress`, `decompress`, `verify` and `inspect` do, with the public headers
// alone. Its archives equal those of kvtool, byte for byte.
//   archive_tool compress FILE ARCHIVE [BESIDE...]
//   archive_tool decompress ARCHIVE FILE [BESIDE...]
//   archive_tool verify ARCHIVE FILE [BESIDE...]
//   archive_tool inspect ARCHIVE
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "kvtool.hpp"

namespace {

// A file that the library reads at any offset.
class Input {
 public:
  explicit Input(const std::string& path) : path_(path), in_(path, std::ios::binary) {
    if (!in_) throw std::runtime_error("cannot open " + path);
    bytes_ = std::filesystem::file_size(path);
  }
  uint64_t bytes() const { return bytes_; }
  void Read(uint64_t offset, kvtool::MutableBytes to) {
    in_.seekg(static_cast<std::streamoff>(offset));
    in_.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(to.size()));
    if (!in_) throw std::runtime_error("cannot read " + path_);
  }
  kvtool::ReadAt reader() {
    return [this](uint64_t offset, kvtool::MutableBytes to) { Read(offset, to); };
  }
  // The form that kvtool::Pack and kvtool::Reference accept.
  kvtool::File file() {
    return {std::filesystem::path(path_).filename().string(), bytes_, reader()};
  }

 private:
  std::string path_;
  std::ifstream in_;
  uint64_t bytes_ = 0;
};

class Output {
 public:
  explicit Output(const std::string& path) : out_(path, std::ios::binary | std::ios::trunc) {}
  kvtool::Write writer() {
    return [this](kvtool::Bytes bytes) {
      out_.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
      if (!out_) throw std::runtime_error("cannot write");
    };
  }

 private:
  std::ofstream out_;
};

std::vector<kvtool::Reference> Open(const kvtool::Context& context,
                                    const std::vector<std::string>& paths) {
  std::vector<kvtool::Reference> references;
  for (const std::string& path : paths) {
    Input input(path);
    const kvtool::File file = input.file();
    references.emplace_back(context, std::span(&file, 1));
  }
  return references;
}

void Compress(const kvtool::Context& context, const std::string& from, const std::string& to,
              const std::vector<kvtool::Reference>& beside) {
  Input input(from);
  Output output(to);
  const kvtool::File file = input.file();
  kvtool::Pack(context, {&file, 1}, output.writer(), beside);
}

void Decompress(const kvtool::Context& context, const std::string& from, const std::string& to,
                const std::vector<kvtool::Reference>& beside) {
  Input input(from);
  Output output(to);
  kvtool::Unpack(
      context, input.bytes(), input.reader(), [&](auto, auto) { return output.writer(); }, beside);
}

// Compares the restored bytes with a file instead of writing them.
void Verify(const kvtool::Context& context, const std::string& archive, const std::string& against,
            const std::vector<kvtool::Reference>& beside) {
  Input input(archive), source(against);
  uint64_t at = 0;
  std::vector<std::byte> there;
  const auto compare = [&](kvtool::Bytes restored) {
    there.resize(restored.size());
    if (at + restored.size() > source.bytes()) throw std::runtime_error("the source is shorter");
    source.Read(at, there);
    if (!std::equal(there.begin(), there.end(), restored.begin()))
      throw std::runtime_error("the source differs");
    at += restored.size();
  };
  kvtool::Unpack(
      context, input.bytes(), input.reader(), [&](auto, auto) { return kvtool::Write(compare); },
      beside);
  if (at != source.bytes()) throw std::runtime_error("the source is longer");
  std::printf("identical: %llu bytes\n", static_cast<unsigned long long>(at));
}

// Reads only the index.
void Inspect(const kvtool::Context& context, const std::string& archive) {
  Input input(archive);
  const kvtool::Reader reader(context, input.bytes(), input.reader());
  for (uint64_t i = 0; i < reader.parts(); ++i) {
    const kvtool::Reader::Part part = reader.At(i);
    std::printf("%s %llu x %u x %u, %llu bytes in %llu\n", part.name.c_str(),
                static_cast<unsigned long long>(part.desc.tokens), part.desc.heads,
                part.desc.head_dim, static_cast<unsigned long long>(part.raw_bytes),
                static_cast<unsigned long long>(part.stored_bytes));
  }
  for (const kvtool::Reader::Need& need : reader.Needs()) {
    std::printf("needs %s, %s, %llu bytes\n", need.name.c_str(), need.format.c_str(),
                static_cast<unsigned long long>(need.bytes));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool inspects = words.size() == 2 && words[0] == "inspect";
  if (!inspects && words.size() < 3) {
    std::fputs(
        "usage: archive_tool compress|decompress|verify FROM TO [BESIDE...], or inspect ARCHIVE\n",
        stderr);
    return 2;
  }
  try {
    const kvtool::Pool pool;
    const kvtool::Context context(KVT_DEFAULT, &pool);
    if (inspects) {
      Inspect(context, words[1]);
      return 0;
    }
    const std::vector<kvtool::Reference> beside = Open(context, {words.begin() + 3, words.end()});
    if (words[0] == "compress") Compress(context, words[1], words[2], beside);
    if (words[0] == "decompress") Decompress(context, words[1], words[2], beside);
    if (words[0] == "verify") Verify(context, words[1], words[2], beside);
    return 0;
  } catch (const std::exception& error) {  // kvtool::Error has finding(), offset() and hint()
    std::fprintf(stderr, "archive_tool: %s\n", error.what());
    return 1;
  }
}
