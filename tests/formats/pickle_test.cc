// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/torch/pickle.h"

#include <catch2/catch.hpp>
#include <string>

namespace kv::pickle_test {
namespace {

using std::string_literals::operator""s;

// The stream must live as long as the values.
struct Loaded {
  explicit Loaded(std::string text)
      : stream(std::move(text)), pickle(ReadPickle(AsBytes(stream))) {}
  const PickleValue& root() const { return pickle[pickle.root()]; }
  const PickleValue& item(size_t i) const { return pickle[root().items()[i]]; }

  std::string stream;
  Pickle pickle;
};

Error Refusal(const std::string& stream) {
  try {
    const Loaded loaded(stream);
  } catch (const Error& error) {
    return error;
  }
  FAIL("the pickle was accepted");
  return Error(Finding::kInternal, "");
}

}  // namespace

TEST_CASE("scalars of every protocol read as their values") {
  const Loaded list(
      "\x80\x02](NI7\nI01\nL-12L\nF2.5\nJ\xff\xff\xff\xffK\x05M\x01\x02\x88\x89"
      "\x8a\x02\x00\xff\x8a\x00\x8b\x01\x00\x00\x00\x80G\x3f\xf8\x00\x00\x00\x00\x00\x00"
      "e."s);
  const int64_t integers[] = {0, 7, 1, -12, 0, -1, 5, 0x201, 1, 0, -256, 0, -128};
  REQUIRE(list.root().items().size() == 14);
  for (size_t i = 0; i < 13; ++i) {
    if (i != 4) CHECK(list.item(i).integer() == integers[i]);
  }
  CHECK(list.item(0).kind() == PickleKind::kNone);
  CHECK(list.item(2).kind() == PickleKind::kBool);
  CHECK(list.item(4).real() == 2.5);
  CHECK(list.item(13).real() == 1.5);
}

TEST_CASE("small integers, flags and the empty tuple are one object each, as in Python") {
  // The pickle is the list [5, 5, INT 5, True, True, 1, 255, 256, 256, (), ()].
  const Loaded list("\x80\x02](K\x05K\x05I5\n\x88\x88K\x01K\xffM\x00\x01M\x00\x01))e."s);
  const std::span<const PickleId> ids = list.root().items();
  REQUIRE(ids.size() == 11);
  CHECK(ids[0] == ids[1]);
  CHECK(ids[0] == ids[2]);
  CHECK(ids[3] == ids[4]);
  CHECK(ids[3] != ids[5]);  // True is not 1
  CHECK(list.item(3).kind() == PickleKind::kBool);
  CHECK(list.item(5).kind() == PickleKind::kInt);
  CHECK(list.item(6).integer() == 255);
  CHECK(ids[7] != ids[8]);
  CHECK(list.item(8).integer() == 256);
  CHECK(ids[9] == ids[10]);
  CHECK(list.item(9).items().empty());
}

TEST_CASE("integers beyond 64 bits are kept as their bytes") {
  const Loaded big("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s);
  CHECK(big.root().kind() == PickleKind::kBigInt);
  CHECK(big.root().text().size() == 9);
}

TEST_CASE("texts of every protocol read as UTF-8") {
  const Loaded list(
      "](S'a\\n\\x41\\''\nVna\\u00efve\nX\x03\x00\x00\x00"
      "abcU\x01zT\x01\x00\x00\x00y\x8c\x01x\x8d\x01\x00\x00\x00\x00\x00\x00\x00we."s);
  const std::string expected[] = {"a\nA'", "na\xc3\xafve", "abc", "z", "y", "x", "w"};
  REQUIRE(list.root().items().size() == 7);
  for (size_t i = 0; i < 7; ++i) CHECK(list.item(i).text() == expected[i]);
  const Loaded bytes(
      "](B\x01\x00\x00\x00\xff"
      "C\x01\xfe\x8e\x01\x00\x00\x00\x00\x00\x00\x00\xfd\x96\x01\x00\x00\x00\x00\x00"
      "\x00\x00\xfc"
      "e."s);
  CHECK(bytes.item(3).kind() == PickleKind::kBytes);
  CHECK(bytes.item(3).text() == "\xfc");
}

TEST_CASE("containers nest, and the memo shares") {
  const Loaded dict(
      "\x80\x04}(\x8c\x01"
      "a]\x94(K\x01K\x02\x86K\x03\x85)e\x8c\x01"
      "bh\x00u."s);
  CHECK(dict.root().kind() == PickleKind::kDict);
  const PickleId a = dict.pickle.Get(dict.pickle.root(), "a");
  CHECK(a == dict.pickle.Get(dict.pickle.root(), "b"));
  CHECK(dict.pickle[a].items().size() == 3);
  CHECK(dict.pickle.Get(dict.pickle.root(), "c") == kPickleNone);
}

TEST_CASE("MEMOIZE takes the next place, even where PUT was before") {
  const Loaded out_of_order(
      "\x80\x04K\x01q\x02"s
      "0K\x07\x94"s
      "0K\x08\x94"s
      "0h\x02."s);
  CHECK(out_of_order.root().integer() == 8);  // Python gives 8, too
  const Loaded far(
      "\x80\x04K\x01r\xff\xff\xff\xff"s
      "0K\x07\x94"s
      "0j\xff\xff\xff\xff"s
      "h\x01\x86."s);
  CHECK(far.item(0).integer() == 1);
  CHECK(far.item(1).integer() == 7);
}

TEST_CASE("memo places may have gaps and be filled later") {
  const Loaded gap(
      "\x80\x02K\x01q\x05"s
      "0K\x02q\x00"s
      "0K\x03q\x05"s  // reuses the place of the first one
      "0K\x04r\x00\x10\x00\x00"s
      "0(h\x05h\x00j\x00\x10\x00\x00t."s);
  REQUIRE(gap.root().items().size() == 3);
  CHECK(gap.item(0).integer() == 3);
  CHECK(gap.item(1).integer() == 2);
  CHECK(gap.item(2).integer() == 4);
  CHECK(Refusal("\x80\x02K\x01q\x05h\x03\x86."s).finding() == Finding::kBadPickle);
}

TEST_CASE("many values, many keys and lists that grow one by one keep what they hold") {
  // More values than two pages hold, and more keys than the first tables hold.
  std::string stream = "]";
  for (int i = 0; i < 20'000; ++i) {
    stream += "}M";
    stream += static_cast<char>(i & 0xff);
    stream += static_cast<char>(i >> 8);
    stream += "K\x01sK\x07K\x02sa"s;
  }
  const Loaded list(stream + "."s);
  REQUIRE(list.root().items().size() == 20'000);
  for (size_t i = 0; i < 20'000; ++i) {
    const PickleValue& dict = list.item(i);
    REQUIRE(dict.items().size() == (i == 7 ? 2 : 4));
    REQUIRE(list.pickle[dict.items()[0]].integer() == static_cast<int64_t>(i));
    REQUIRE(list.pickle[dict.items()[1]].integer() == (i == 7 ? 2 : 1));
  }
}

TEST_CASE("what a value does not have reads as empty") {
  const Loaded list("](K\x05U\x01zG\x3f\xf8\x00\x00\x00\x00\x00\x00]e."s);
  REQUIRE(list.root().items().size() == 4);
  CHECK(list.item(0).text().empty());
  CHECK(list.item(0).items().empty());
  CHECK(list.item(1).integer() == 0);
  CHECK(list.item(1).real() == 0);
  CHECK(list.item(2).integer() == 0);
  CHECK(list.item(3).text().empty());
}

TEST_CASE("a repeated key keeps its place and takes the later value, as in Python") {
  const Loaded dict(
      "}(U\x01"
      "aK\x01U\x01"
      "bK\x02U\x01"
      "aK\x03u."s);
  REQUIRE(dict.root().items().size() == 4);
  CHECK(dict.item(1).integer() == 3);
  CHECK(dict.item(2).text() == "b");
}

TEST_CASE("an OrderedDict is a dict, its attributes are set aside") {
  const Loaded dict("ccollections\nOrderedDict\n)R(U\x01kK\x07u}U\x09_metadata}sb."s);
  CHECK(dict.root().kind() == PickleKind::kDict);
  REQUIRE(dict.root().items().size() == 2);
  CHECK(dict.item(1).integer() == 7);
  const Loaded pairs(
      "ccollections\nOrderedDict\n(](](U\x01kK\x07"
      "eetR."s);
  REQUIRE(pairs.root().items().size() == 2);
}

TEST_CASE("a call is kept as a node and nothing is called") {
  const Loaded object("cmy.module\nThing\n(K\x01tR}U\x01xK\x02sb."s);
  CHECK(object.root().kind() == PickleKind::kObject);
  CHECK(object.pickle.FindClass(object.pickle.root()) == "my.module.Thing");
  CHECK(object.pickle.Describe(object.pickle.root()) == "an object of my.module.Thing");
  REQUIRE(object.root().items().size() == 4);
  CHECK(object.pickle.Get(object.root().items()[3], "x") != kPickleNone);
}

TEST_CASE("latin1 text becomes the bytes that Python 2 would have meant") {
  const Loaded bytes(
      "c_codecs\nencode\n(X\x03\x00\x00\x00\xc3\xbf"
      "aX\x06\x00\x00\x00latin1tR."s);
  CHECK(bytes.root().kind() == PickleKind::kBytes);
  CHECK(bytes.root().text() ==
        "\xff"
        "a");
}

TEST_CASE("texts are UTF-8 or refused, Python 2's are bytes then") {
  const std::string bad[] = {"\x80\x02X\x02\x00\x00\x00\xff\xfe."s,
                             "\x8c\x01\xff."s,
                             "\x8d\x02\x00\x00\x00\x00\x00\x00\x00\xc0\x80."s,  // overlong
                             "X\x03\x00\x00\x00\xed\xa0\x80."s,                 // half a pair
                             "X\x04\x00\x00\x00\xf4\x90\x80\x80."s,             // above U+10FFFF
                             "X\x02\x00\x00\x00\xe2\x82."s,                     // cut
                             "V\\ud800\n."s,
                             "cmy\xff\nThing\n."s};
  for (const std::string& stream : bad) {
    INFO(Escaped(stream));
    CHECK(Refusal(stream).finding() == Finding::kBadPickle);
  }
  for (const std::string& stream :
       {"U\x02\xff\xfe."s, "T\x02\x00\x00\x00\xff\xfe."s, "S'\\xff\\xfe'\n."s}) {
    const Loaded old(stream);
    CHECK(old.root().kind() == PickleKind::kBytes);
    CHECK(old.root().text() == "\xff\xfe");
  }
  CHECK(Loaded("X\x04\x00\x00\x00\xf0\x9f\x98\x80."s).root().kind() == PickleKind::kText);
}

TEST_CASE("names that no data needs are refused wherever they stand, by name and offset") {
  const std::string names[] = {"os\nsystem",           "posix\nsystem",
                               "nt\nsystem",           "subprocess\nPopen",
                               "builtins\neval",       "__builtin__\nexec",
                               "builtins\ngetattr",    "sys\nmodules",
                               "socket\nsocket",       "importlib.util\nfind_spec",
                               "torch.hub\nload",      "torch\nload",
                               "operator\nattrgetter", "os.path\njoin",
                               "shutil\nrmtree"};
  for (const std::string& name : names) {
    INFO(name);
    const Error error = Refusal("N0c" + name + "\n.");
    CHECK(error.finding() == Finding::kForbiddenGlobal);
    CHECK(error.offset() == 2);
  }
  CHECK(Refusal("\x80\x04\x8c\x02os\x8c\x06system\x93."s).finding() == Finding::kForbiddenGlobal);
  // In protocol 4, a dotted name names an attribute of an attribute.
  CHECK(Refusal("\x80\x04\x8c\x05torch\x8c\x17serialization.os.system\x93."s).finding() ==
        Finding::kForbiddenGlobal);
  CHECK_FALSE(IsForbiddenGlobal("builtins", "set"));
  CHECK_FALSE(IsForbiddenGlobal("osprey.models", "Net"));
  CHECK_FALSE(IsForbiddenGlobal("torch", "FloatStorage"));
}

TEST_CASE("opcodes that run code by design are refused by name") {
  const std::pair<std::string, std::string> cases[] = {
      {"(ios\nsystem\n.", "INST"},
      {"(o.", "OBJ"},
      {"\x82\x01.", "EXT1"},
      {"\x83\x01\x01.", "EXT2"},
      {"\x84\x01\x01\x01\x01.", "EXT4"},
      {"Px\n.", "PERSID"},
      {"\x97.", "NEXT_BUFFER"},
      {"\x98.", "READONLY_BUFFER"},
  };
  for (const auto& [stream, name] : cases) {
    const Error error = Refusal(stream);
    CHECK(error.finding() == Finding::kForbiddenOpcode);
    CHECK(error.message().find(name) != std::string::npos);
  }
}

TEST_CASE("streams that build no value are refused") {
  const std::string streams[] = {
      ".",          // nothing to return
      "N",          // no STOP
      "NN.",        // two values
      "(N.",        // an unfinished mark
      "0.",         // POP of nothing
      "e.",         // APPENDS without a mark
      "(K\x01s.",   // SETITEM below its mark
      "}(K\x01u.",  // key without a value
      "NK\x01"
      "a.",              // APPEND to None
      "h\x00.",          // memo never set
      "K\x01)R.",        // calls an int
      "cx\ny\nK\x01R.",  // arguments that are not a tuple
      "K\x01Q.",         // persistent id that is not a tuple
      "]K\x01"
      "b.",  // BUILD of a list
      "Iabc\n.",
      "Fx\n.",
      "Sabc\n.",
      "V\\uzz\n.",
      "\x8b\xff\xff\xff\xff.",  // LONG4 of negative size
      "\xfe.",                  // undefined opcode
      "N\xfe.",
  };
  for (const std::string& stream : streams) {
    INFO(Escaped(stream));
    const Finding finding = Refusal(stream).finding();
    CHECK((finding == Finding::kBadPickle || finding == Finding::kTruncated));
  }
  CHECK(Refusal("\x80\x06N.").finding() == Finding::kBadVersion);
}

TEST_CASE("sizes are checked against the bytes left before anything is copied") {
  CHECK(Refusal("X\xff\xff\xff\xff.").finding() == Finding::kTruncated);
  CHECK(Refusal("\x8e\xff\xff\xff\xff\xff\xff\xff\xff.").finding() == Finding::kTruncated);
  CHECK(Refusal("\x95\x10\x00\x00\x00\x00\x00\x00\x00N."s).finding() == Finding::kTruncated);
}

TEST_CASE("depth and cycles are limits, sharing is not") {
  const std::string deep = std::string(20000, ']') + std::string(19999, 'a') + ".";
  CHECK(Refusal(deep).finding() == Finding::kLimit);
  CHECK(Refusal("]q\x00h\x00"s
                "a.")
            .finding() == Finding::kLimit);
  // Tuples cannot change, so their depth is known when they are made.
  const auto tuples = [](int count) { return "N" + std::string(count, '\x85') + "."; };
  CHECK(Loaded(tuples(999)).root().items().size() == 1);
  CHECK(Refusal(tuples(1000)).finding() == Finding::kLimit);
  const auto in_lists = [](int lists) {
    return std::string(lists, ']') + "N" + std::string(600, '\x85') + std::string(lists, 'a') + ".";
  };
  CHECK(Loaded(in_lists(399)).root().items().size() == 1);
  CHECK(Refusal(in_lists(400)).finding() == Finding::kLimit);
  // A list is inside a tuple inside the same list.
  CHECK(Refusal("]q\x00h\x00\x85"s
                "a.")
            .finding() == Finding::kLimit);
  // A list of two lists of two lists ... forty levels deep: 2^40 leaves, 40 values.
  std::string shared = "]";
  for (int i = 0; i < 40; ++i) {
    const char slot = static_cast<char>(i);
    shared = shared + "q" + slot + "0](h" + slot + "h" + slot + "e";
  }
  CHECK(Loaded(shared + ".").root().items().size() == 2);
}

TEST_CASE("a short stream cannot make the reader work without end") {
  // One long text used as a key many times, and one long list copied many times.
  const uint32_t size = 1 << 20;
  std::string keys = "}X" + std::string(reinterpret_cast<const char*>(&size), 4) +
                     std::string(size, 'k') + "q\x00"s + "0";
  for (int i = 0; i < 100; ++i) keys += "h\x00Ns"s;
  CHECK(Refusal(keys + ".").finding() == Finding::kLimit);
  std::string copies = "](" + std::string(100000, 'N') + "eq\x00"s + "0](";
  for (int i = 0; i < 1000; ++i) copies += "cbuiltins\nset\nh\x00\x85R"s;
  CHECK(Refusal(copies + "e.").finding() == Finding::kLimit);
}

}  // namespace kv::pickle_test
