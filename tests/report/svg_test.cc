// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/report/svg.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "lib/report/html.h"

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
                  {"window <4>", {{1.5, 0.03}, {2, NAN}, {3, 0.2}, {3.2, 0.21}}, false, false},
                  {"layers", {{1.4, 0.08}, {2.6, 0.1}}, false, false, false}};
  chart.targets = {{2, "2x"}, {2.05, "hidden name"}, {3, "<3x>"}, {0.15, "at most 0.15", true}};
  chart.y_min = 0;
  return chart;
}

}  // namespace

TEST_CASE("charts are the same text for the same data", "[svg]") {
  CheckGolden("line.svg", Render(SmallChart()).File("what it shows"));
  LineChart scatter;
  scatter.title = "Ratio against speed";
  scatter.x_label = "MB/s";
  scatter.y_label = "ratio";
  scatter.log_x = true;
  scatter.series = {
      {"",
       {{420, 1.31, "default"}, {9, 1.42, "max"}, {NAN, 2, "broken"}, {0, 2, "still"}},
       true,
       false,
       false},
      {"peers", {{410, 1.305, "peer <1>"}, {8, 1.2, "slow"}}, false, false, false}};
  scatter.series.push_back({"", Frontier(scatter.series[0].points, false), false, true});
  CheckGolden("scatter.svg", Render(scatter).Inline());
  StripMap map;
  map.title = "Kept tokens";
  map.x_label = "position";
  map.x_end = 64;
  map.rows = {{"L0", {{0, 8, 1, 0, "kept"}, {8, 40, 0.3, 1, "held for 30%"}, {40, 64, 1, 0, ""}}},
              {"L1", {{0, 64, NAN, 0, "unknown"}}}};
  map.low_label = "0";
  map.high_label = "1";
  map.second_label = "evicted";
  CheckGolden("strips.svg", Render(map).Inline("a < b"));
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
  CHECK(text.find("<script") == text.rfind("<script"));
  CHECK(text.find("Nothing") == std::string::npos);
}

TEST_CASE("hostile names stay text", "[svg]") {
  const std::string hostile =
      "</text><script>alert(1)</script>\"' \xff\x01\xe2\x80\xae\xef\xbf\xbe";
  const std::string escaped =
      "&lt;/text&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;' \\xff\\x01\\xe2\\x80\\xae"
      "\\xef\\xbf\\xbe";
  CHECK(EscapeMarkup(hostile) == escaped);
  LineChart chart;
  chart.title = chart.x_label = chart.y_label = hostile;
  chart.series = {{hostile, {{1, 2, hostile}, {2, 3}}}};
  chart.markers = true;
  chart.targets = {{1.5, hostile}, {2.5, hostile, true}};
  StripMap map;
  map.title = map.x_label = map.low_label = map.high_label = map.second_label = hostile;
  map.rows = {{hostile, {{0, 1, 1, 0, hostile}}}};
  Page page(hostile, hostile);
  page.Heading(hostile);
  page.Figure(Render(chart), hostile);
  page.Figure(Render(map), hostile);
  page.Table({{hostile, "v"}, {hostile, hostile}});
  std::string text = page.Text();
  for (const PictureFile& picture : page.pictures()) text += picture.text;
  for (const std::string part : {"<script>a", "\xff", "\x01", "\xe2\x80\xae", "\xef\xbf\xbe"}) {
    CHECK(text.find(part) == std::string::npos);
  }
  CHECK(page.pictures().at(0).name == "text-script-alert-1-script.svg");
  CHECK(page.pictures().at(1).name == "text-script-alert-1-script-2.svg");
}

TEST_CASE("pictures and tables are bounded", "[svg]") {
  StripMap map;
  const uint64_t columns = MapColumns(100'000, 200);
  map.x_end = static_cast<double>(columns);
  for (size_t r = 0; r < 1000; ++r) {
    StripRow& row = map.rows.emplace_back(StripRow{std::string(5000, 'n'), {}});
    for (uint64_t c = 0; c < columns; ++c) {
      const auto x = static_cast<double>(c);
      row.spans.push_back({x, x + 1, static_cast<double>((r * 31 + c * 17) % 97) / 96});
    }
  }
  CHECK(columns == 120);
  CHECK_FALSE(HasRoomForTips(columns, 200));
  CHECK(MapColumns(7, 3) == 7);
  CHECK(MapColumns(0, 0) == 1);
  CHECK(Render(map).body.find("744 more rows") != std::string::npos);
  map.rows.resize(200);
  for (StripRow& row : map.rows) row.name = "L";
  CHECK(Render(map).body.size() < 900'000);
  LineChart chart;
  ChartSeries& series = chart.series.emplace_back();
  for (int i = 0; i < 1'000'000; ++i) series.points.push_back({static_cast<double>(i), 1});
  CHECK(Render(chart).body.size() < 40'000);
  Page page("many rows");
  page.Table(std::vector<std::vector<std::string>>(10'001, {"a", "1"}));
  CHECK(page.Text().size() < 200'000);
  CHECK(page.Text().find("8000 more rows are not shown") != std::string::npos);
}

TEST_CASE("units of a column move to its head", "[svg]") {
  Page page("units");
  page.Table({{"name", "ratio", "error", "bytes", "kl", "word", "none"},
              {"a", "1.5x", "3%", "2 KiB", "0.1 (0.05 to 0.2)", "1.5x", "-"},
              {"b", "12x", "-", "3 MiB", "0.2", "all", ""}});
  const std::string text = page.Text();
  CHECK(text.find("<th scope=\"col\" class=\"n\">ratio, x</th>") != std::string::npos);
  CHECK(text.find("<td class=\"n\">12</td>") != std::string::npos);
  CHECK(text.find("error, %") != std::string::npos);
  CHECK(text.find("<td class=\"n\" data-v=\"2048\">2 KiB</td>") != std::string::npos);
  CHECK(text.find("<td class=\"n\">0.1 (0.05 to 0.2)</td>") != std::string::npos);
  CHECK(text.find("<td>1.5x</td>") != std::string::npos);
  CHECK(text.find("<th scope=\"col\">none</th>") != std::string::npos);
}

TEST_CASE("names beside the plot never overlap", "[svg]") {
  LineChart chart;
  for (int i = 0; i < 12; ++i) {
    chart.series.push_back({"s" + std::to_string(i), {{0, 0}, {1, i < 9 ? 0.5 : 1.0}}});
  }
  const std::string text = Render(chart).body;
  std::vector<double> heights;
  for (size_t at = 0; (at = text.find("\">s", at)) != std::string::npos; ++at) {
    const size_t y = text.rfind("y=\"", at) + 3;
    heights.push_back(std::strtod(text.c_str() + y, nullptr));
  }
  REQUIRE(heights.size() == 12);
  std::sort(heights.begin(), heights.end());
  for (size_t i = 1; i < heights.size(); ++i) CHECK(heights[i] - heights[i - 1] >= 13.99);
}

TEST_CASE("colours stand out from the paper in both settings", "[svg]") {
  const std::string style = ChartStyle();
  const auto luminance = [](const std::string& hex) {
    double sum = 0;
    for (int i = 0; i < 3; ++i) {
      const double c = std::stoi(hex.substr(static_cast<size_t>(2 * i), 2), nullptr, 16) / 255.0;
      const double linear = c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
      sum += linear * (i == 0 ? 0.2126 : i == 1 ? 0.7152 : 0.0722);
    }
    return sum;
  };
  for (const size_t setting : {style.find(":root"), style.rfind(":root")}) {
    const auto of = [&](const std::string& name) {
      return luminance(style.substr(style.find("--" + name + ":#", setting) + name.size() + 4, 6));
    };
    for (const std::string name :
         {"ink", "dim", "accent", "second", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"}) {
      const double a = of(name), b = of("paper");
      INFO(name);
      CHECK((std::max(a, b) + 0.05) / (std::min(a, b) + 0.05) >= 4.5);
    }
  }
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
  const std::string text = Render(chart).body;
  CHECK(text.find("<path") == std::string::npos);
  CHECK(text.find("nan") == std::string::npos);
  CHECK(Render(StripMap{}).body.find("nan") == std::string::npos);
}

}  // namespace kv::report::svg_test
