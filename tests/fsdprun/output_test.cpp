#include "output.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fsdprun {
namespace {

/// Feeds `parts` one after the other, and returns the pieces. "~" marks a piece that does not begin a line.
std::vector<std::string> pieces(const std::vector<std::string>& parts, bool finish = false) {
  std::vector<std::string> result;
  const LineSplitter::Sink sink = [&](std::string_view piece, bool starts_line) {
    result.push_back(std::string(starts_line ? "" : "~").append(piece));
  };
  LineSplitter splitter;
  for (const std::string& part : parts) splitter.feed(part, sink);
  if (finish) splitter.finish(sink);
  return result;
}

TEST(LineSplitter, LinesComeWholeHoweverTheyArrive) {
  struct Output {
    std::vector<std::string> parts, lines;
    bool finish = false;
  };
  const std::vector<Output> outputs{{{"one\ntwo\n"}, {"one\n", "two\n"}},
                                    {{"o", "ne\nt", "wo", "\n"}, {"one\n", "two\n"}},
                                    {{"\n\n"}, {"\n", "\n"}},
                                    {{"one"}, {}},
                                    // A line that was not finished is completed at the end.
                                    {{"one"}, {"one\n"}, true},
                                    {{"one\n"}, {"one\n"}, true},
                                    // A carriage return ends a piece. A carriage return and a newline are one end.
                                    {{"1 %\r2 %\r"}, {"1 %\r", "2 %\r"}},
                                    {{"\r1 %\r2 %\n"}, {"1 %\r", "2 %\n"}},
                                    {{"one\r\ntwo\r\n"}, {"one\r\n", "two\r\n"}},
                                    {{"one\r", "\ntwo\n"}, {"one\r", "~\n", "two\n"}},
                                    {{"one\r", "two\n"}, {"one\r", "two\n"}}};
  for (const auto& [parts, lines, finish] : outputs)
    EXPECT_EQ(pieces(parts, finish), lines) << testing::PrintToString(parts);
}

TEST(LineSplitter, ALongLineStaysWholeAndOneWithoutEndIsNotKeptForEver) {
  using Pieces = std::vector<std::string>;
  // The number of leading x in a piece stands for them.
  const auto counted = [](Pieces all) {
    for (auto& piece : all) {
      const auto count = std::min(piece.find_first_not_of('x'), piece.size());
      if (count > 0) piece.replace(0, count, std::to_string(count));
    }
    return all;
  };
  const std::string megabyte(1 << 20, 'x'), too_much(17 << 20, 'x'), its_size = std::to_string(too_much.size());
  EXPECT_EQ(counted(pieces({megabyte, "y\n"})), Pieces{std::to_string(megabyte.size()) + "y\n"});
  EXPECT_EQ(counted(pieces({too_much})), Pieces{its_size});
  EXPECT_EQ(counted(pieces({too_much, "y\nz\n"})), (Pieces{its_size, "~y\n", "z\n"}));
  EXPECT_EQ(counted(pieces({too_much, "\r", "z"}, /*finish=*/true)), (Pieces{its_size, "~\r", "z\n"}));
  EXPECT_EQ(counted(pieces({too_much}, /*finish=*/true)), (Pieces{its_size, "~\n"}));
}

}  // namespace
}  // namespace fsdprun
