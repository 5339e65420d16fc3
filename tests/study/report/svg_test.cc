// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/report/svg.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "lib/study/report/html.h"

namespace kv::report::svg_test {
namespace {

// The picture as it is in testdata/report; KVTOOL_UPDATE=1 writes it anew, to be looked at.
void CheckGolden(const std::string& name, const std::string& text) {
  const std::string path = std::string(KVTOOL_TESTDATA) + "/report/" + name;
  if (std::getenv("KVTOOL_UPDATE") != nullptr) std::ofstream(path) << text;
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  CHECK(text == expected.str());
}

LineChart SmallChart() {
  LineChart chart;
  chart.title = "Error against ratio";
  chart.x_label = "ratio";
  chart.y_label = "error";
  chart.series = {{"block", {{1.5, 0.02}, {2, 0.05}, {3, 0.11}}, true, false},
                  {"window <4>", {{1.5, 0.03}, {2, NAN}, {3, 0.2}}, false, false}};
  chart.markers = true;
  chart.y_min = 0;
  return chart;
}

}  // namespace

TEST_CASE("charts are the same text for the same data", "[svg]") {
  CheckGolden("line.svg", Render(SmallChart()));
  ScatterChart scatter;
  scatter.title = "Ratio against speed";
  scatter.x_label = "MB/s";
  scatter.y_label = "ratio";
  scatter.points = {{"default", 420, 1.31, true}, {"max", 9, 1.42, true},
                    {"peer <1>", 410, 1.305},     {"slow", 8, 1.2},
                    {"broken", NAN, 2, true},     {"still", 0, 2}};
  CheckGolden("scatter.svg", Render(scatter));
  CHECK(Render(ScatterChart{}).find("<circle") == std::string::npos);
  StripMap map;
  map.title = "Kept tokens";
  map.x_label = "position";
  map.x_end = 64;
  map.rows = {{"L0", {{0, 8, 1, 0, "kept"}, {8, 40, 0.3, 1, "held for 30%"}, {40, 64, 1, 0, ""}}},
              {"L1", {{0, 64, NAN, 0, "unknown"}}}};
  map.low_label = "0";
  map.high_label = "1";
  map.second_label = "evicted";
  CheckGolden("strips.svg", Render(map));
}

TEST_CASE("pages are self-contained and escape what they are told", "[svg]") {
  Page page("<b> & \"c\"", "sub\x01title");
  page.Facts({{"ratio", "2x"}});
  page.Figure(Render(SmallChart()), "a < b");
  page.Figure(Render(SmallChart()), "two");
  page.Table({{"name", "value"}, {"x", "1.5"}, {"y", "-"}}, {1});
  page.Notes("Remarks", {"one & two"});
  page.Notes("Nothing", {});
  const std::string text = page.Text();
  CheckGolden("page.html", text);
  CHECK(text.find("&lt;b&gt; &amp; &quot;c&quot;") != std::string::npos);
  CHECK(text.find("<b>") == std::string::npos);
  CHECK(text.find("sub\\x01title") != std::string::npos);
  CHECK(text.find("<script") == std::string::npos);
  CHECK(text.find("Nothing") == std::string::npos);
}

TEST_CASE("ticks are round and cover the range", "[svg]") {
  CHECK(RoundTicks(0, 1, 5) == std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1});
  CHECK(RoundTicks(0, 100, 5) == std::vector<double>{0, 20, 40, 60, 80, 100});
  CHECK(RoundTicks(3, 3, 5) == std::vector<double>{3});
  CHECK(RoundTicks(0, INFINITY, 5).size() == 1);
  for (const double high : {1e-9, 0.37, 12345.0, 7e12}) {
    const std::vector<double> ticks = RoundTicks(-high, high, 5);
    CHECK(ticks.size() >= 3);
    CHECK(ticks.size() <= 12);
    CHECK(ticks.front() >= -high * (1 + 1e-6));
    CHECK(ticks.back() <= high * (1 + 1e-6));
  }
}

TEST_CASE("numbers are short", "[svg]") {
  CHECK(ShortNumber(0.25) == "0.25");
  CHECK(ShortNumber(-0.0) == "0");
  CHECK(ShortNumber(12345) == "12345");
  CHECK(ShortNumber(1.23456e-7) == "1.235e-07");
  CHECK(ShortNumber(NAN) == "-");
  CHECK(ShortBytes(1536) == "1.5 KiB");
}

TEST_CASE("charts without data are empty frames", "[svg]") {
  LineChart chart;
  chart.series = {{"nothing", {}, false, false}, {"nan", {{NAN, 1}, {1, INFINITY}}, false, false}};
  const std::string text = Render(chart);
  CHECK(text.find("<path") == std::string::npos);
  CHECK(text.find("nan") == std::string::npos);
  CHECK(Render(StripMap{}).find("</svg>") != std::string::npos);
}

}  // namespace kv::report::svg_test
