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
#include "lib/report/svg_text.h"

namespace kv::report::svg_test {
namespace {

// Compares with the picture in testdata/report; KVTOOL_UPDATE=1 writes a new one, to be inspected.
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
  for (const PictureFile& picture : page.pictures()) text += picture.Text();
  page.Feature(hostile);
  const PictureFile featured = page.Featured(hostile).value();
  text += featured.Text();
  for (const std::string part : {"<script>a", "\xff", "\x01", "\xe2\x80\xae", "\xef\xbf\xbe"}) {
    CHECK(text.find(part) == std::string::npos);
  }
  for (const char c : featured.picture.Pdf()) CHECK((c == '\n' || (c >= ' ' && c <= '~')));
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
  CHECK(Render(map).Inline().find("744 more rows") != std::string::npos);
  map.rows.resize(200);
  for (StripRow& row : map.rows) row.name = "L";
  CHECK(Render(map).Inline().size() < 900'000);
  LineChart chart;
  ChartSeries& series = chart.series.emplace_back();
  for (int i = 0; i < 1'000'000; ++i) series.points.push_back({static_cast<double>(i), 1});
  CHECK(Render(chart).Inline().size() < 40'000);
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

namespace {

// Returns the extent of a text on a screen with wide letters.
struct TextBox {
  double left, top, right, bottom;
};
TextBox BoxOf(const Mark& mark) {
  const auto has = [&](const char* name) {
    return (" " + mark.classes + " ").find(std::string(" ") + name + " ") != std::string::npos;
  };
  const double width = TextWidth(mark.text);
  const double left = mark.x - (has("m") ? width / 2 : has("e") ? width : 0);
  return {left, mark.y - 10, left + width, mark.y + 2};
}

// Every text is inside the picture, and none hides another.
void CheckTexts(const Picture& picture) {
  std::vector<const Mark*> texts;
  for (const Mark& mark : picture.marks) {
    if (mark.kind == Mark::Kind::kText && !mark.text.empty()) texts.push_back(&mark);
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const TextBox a = BoxOf(*texts[i]);
    INFO(texts[i]->text);
    CHECK(a.left >= -0.5);
    CHECK(a.right <= picture.width + 0.5);
    CHECK(a.top >= 0);
    CHECK(a.bottom <= picture.height + 0.5);
    for (size_t j = 0; j < i; ++j) {
      const TextBox b = BoxOf(*texts[j]);
      INFO(texts[j]->text);
      CHECK_FALSE((a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
    }
  }
}

}  // namespace

TEST_CASE("texts of charts are whole and hide none of each other", "[svg]") {
  LineChart chart;
  chart.title = "A title that is so long that it takes more than one line of the chart to say it";
  chart.x_label = std::string(90, 'x');
  chart.y_label = std::string(90, 'y');
  for (int i = 0; i < 12; ++i) {
    chart.series.push_back({"a series named " + std::to_string(i), {{0, 0}, {1, i < 9 ? 0.5 : 1}}});
  }
  CheckTexts(Render(chart));
  // Names are shown if there is room: many points, most of them in one place.
  for (ChartSeries& series : chart.series) {
    series.joined = false;
    for (ChartPoint& point : series.points) point.name = "candidate " + series.name;
  }
  const Picture crowd = Render(chart);
  CheckTexts(crowd);
  size_t named = 0;
  for (const Mark& mark : crowd.marks) {
    named += mark.kind == Mark::Kind::kText && mark.text.starts_with("candidate") ? 1U : 0U;
  }
  CHECK(named >= 3);
  CHECK(named < 24);
  // Labels at the right end, and wide ones at the left, such as 1000 MiB/s or 1e-05.
  for (const Unit unit : {Unit::kNumber, Unit::kBytes, Unit::kPercent, Unit::kFactor}) {
    for (const double most : {2000.0, 1e-5, 123456789.0}) {
      for (const bool is_log : {false, true}) {
        LineChart axes;
        axes.title = "axes";
        axes.x_unit = axes.y_unit = unit;
        axes.log_x = is_log;
        axes.series = {{"s", {{most / 200, most / 3}, {most, most}}}};
        CheckTexts(Render(axes));
      }
    }
  }
  StripMap map;
  map.title = "map";
  map.x_label = "position";
  map.x_end = 1'000'000;
  map.rows = {{std::string(60, 'n'), {{0, 1, 1}}}};
  map.low_label = "0";
  map.high_label = std::string(30, 'h');
  map.second_label = std::string(30, 's');
  CheckTexts(Render(map));
}

TEST_CASE("legends have the order of the series", "[svg]") {
  LineChart chart;
  chart.series = {{"low", {{0, 0}, {1, 1}}}, {"high", {{0, 0}, {1, 9}}}, {"none", {}}};
  const std::string text = Render(chart).Inline();
  CHECK(text.find(">low<") < text.find(">high<"));
  CHECK(text.find(">none<") == std::string::npos);
}

TEST_CASE("tooltips have the digits of tables", "[svg]") {
  LineChart chart;
  chart.x_unit = Unit::kFactor;
  chart.y_unit = Unit::kPercent;
  chart.series = {{"s", {{1.28949, 0.046912}}, false, false, false}};
  CHECK(Render(chart).Inline().find("<title>s: 1.289x, 4.69%</title>") != std::string::npos);
}

TEST_CASE("a figure stands alone, as SVG and as PDF", "[svg]") {
  Page page("title", "cache.bin with a trace");
  CHECK_FALSE(page.Featured("kvtool 1"));
  page.Figure(Render(StripMap{}), "The first.");
  LineChart chart;
  chart.title = "Loss (of \\ all)";
  chart.series = {{"s\xc3\xa9ries \xe2\x86\x92", {{1, 1}, {2, 3}}, true, true}};
  page.Figure(Render(chart), "The second.");
  const std::string first = page.Featured("kvtool 1").value().Text();
  CHECK(first.find("The first. cache.bin with a trace. kvtool 1.") != std::string::npos);
  page.Feature("Budgets 0.5");
  const Picture picture = page.Featured("kvtool 1").value().picture;
  CHECK(picture.File().find("The second. cache.bin with a trace. Budgets") != std::string::npos);
  CheckTexts(picture);
  const std::string pdf = picture.Pdf();
  CHECK(pdf.starts_with("%PDF-1.4\n"));
  CHECK(pdf.ends_with("%%EOF\n"));
  CHECK(pdf.find("(Loss \\(of \\\\ all\\))") != std::string::npos);
  CHECK(pdf.find("(s\\351ries ?)") != std::string::npos);
  // Every object is at the offset in the table.
  size_t at = std::strtoul(pdf.c_str() + pdf.find("startxref") + 9, nullptr, 10);
  CHECK(pdf.compare(at, 5, "xref\n") == 0);
  at = pdf.find("65535 f \n", at) + 9;
  for (int object = 1; object <= 7; ++object, at += 20) {
    const size_t offset = std::strtoul(pdf.c_str() + at, nullptr, 10);
    CHECK(pdf.compare(offset, 7, std::to_string(object) + " 0 obj") == 0);
  }
  const size_t length = std::strtoul(pdf.c_str() + pdf.find("/Length ") + 8, nullptr, 10);
  CHECK(pdf.find("endstream") - (pdf.find("stream\n") + 7) == length);
}

TEST_CASE("the name of a limit is where it hides no marker", "[svg]") {
  LineChart chart;
  chart.series = {{"plans", {{0.2, 1}, {1, 0.5}}, false, false, false}};
  chart.targets = {{0.5, "at most 0.5", true}};
  chart.y_min = 0;
  constexpr const char* kAtTheRightEnd = "class=\"t e n\"";
  CHECK(Render(chart).Inline().find("class=\"t n\"") != std::string::npos);
  CHECK(Render(chart).Inline().find(kAtTheRightEnd) == std::string::npos);
  chart.series[0].points.push_back({0, 0.5});  // the line has a marker at both ends
  CHECK(Render(chart).Inline().find(kAtTheRightEnd) != std::string::npos);
  chart.series[0].points = {{0.2, 1}, {1, 0}};
  CHECK(Render(chart).Inline().find(kAtTheRightEnd) != std::string::npos);
}

TEST_CASE("the paper around a name in a PDF has no dashes", "[svg]") {
  LineChart chart;
  chart.series = {{"s", {{0, 0, "a"}, {1, 1, "b"}}, false, true, false}};
  chart.targets = {{0.5, "limit", true}};  // a dotted line that shows the name "limit"
  const std::string pdf = Render(chart).Pdf();
  CHECK(pdf.find("w [2 3] 0 d") != std::string::npos);
  size_t names = 0;
  for (size_t at = pdf.find("1 Tr"); at != std::string::npos;
       at = pdf.find("1 Tr", at + 1), ++names)
    CHECK(pdf.substr(at - 11, 11) == "[] 0 d 1 j ");
  CHECK(names > 0);
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

TEST_CASE("values of every size have places, or none", "[svg]") {
  const double next = std::nextafter(1.0, 2.0), most = std::numeric_limits<double>::max();
  const double least = std::numeric_limits<double>::denorm_min();
  for (const auto& [low, high] : {std::pair{1.0, next},
                                  {1e17, 1e17 + 16},
                                  {-1e299, 1e299},
                                  {0.0, least},
                                  {most, -most},
                                  {1e308, 1e308},
                                  {1e299, 1e299}}) {
    for (const bool log_x : {false, true}) {
      LineChart chart;
      chart.log_x = log_x;
      chart.markers = true;
      chart.series = {{"s", {{low, low}, {high, high}, {low, high}}}};
      chart.targets = {{high, "x"}, {high, "y", true}};
      const std::string text = Render(chart).Inline();
      INFO(low << " to " << high << (log_x ? ", logarithmic" : ""));
      CHECK(text.find("nan") == std::string::npos);
      CHECK(text.find("inf") == std::string::npos);
      CHECK(text.size() < 200'000);
    }
  }
  CHECK(IsRange(1, 1 + 1e-8));
  CHECK_FALSE(IsRange(1, 1 + 1e-10));
  CHECK_FALSE(IsDrawn(1e300));
  CHECK_FALSE(IsDrawn(NAN));
}

TEST_CASE("charts without data are empty frames", "[svg]") {
  LineChart chart;
  chart.series = {{"nothing", {}, false, false}, {"nan", {{NAN, 1}, {1, INFINITY}}, false, false}};
  const std::string text = Render(chart).Inline();
  CHECK(text.find("<path") == std::string::npos);
  CHECK(text.find("nan") == std::string::npos);
  CHECK(Render(StripMap{}).Inline().find("nan") == std::string::npos);
}

}  // namespace kv::report::svg_test
