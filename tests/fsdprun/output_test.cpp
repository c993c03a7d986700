#include "output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// The pieces of `parts`, fed one after the other; "~" before one that does not start a line.
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
  EXPECT_THAT(pieces({"one\ntwo\n"}), ElementsAre("one\n", "two\n"));
  EXPECT_THAT(pieces({"o", "ne\nt", "wo", "\n"}), ElementsAre("one\n", "two\n"));
  EXPECT_THAT(pieces({"\n\n"}), ElementsAre("\n", "\n"));
  EXPECT_THAT(pieces({"one"}), IsEmpty());
}

TEST(LineSplitter, AnUnfinishedLineIsCompletedAtTheEnd) {
  EXPECT_THAT(pieces({"one"}, /*finish=*/true), ElementsAre("one\n"));
  EXPECT_THAT(pieces({"one\n"}, /*finish=*/true), ElementsAre("one\n"));
}

TEST(LineSplitter, ReturnsEndPieces) {
  EXPECT_THAT(pieces({"1 %\r2 %\r"}), ElementsAre("1 %\r", "2 %\r"));
  EXPECT_THAT(pieces({"\r1 %\r2 %\n"}), ElementsAre("1 %\r", "2 %\n"));
}

TEST(LineSplitter, ReturnAndNewlineAreOneEnd) {
  EXPECT_THAT(pieces({"one\r\ntwo\r\n"}), ElementsAre("one\r\n", "two\r\n"));
  EXPECT_THAT(pieces({"one\r", "\ntwo\n"}), ElementsAre("one\r", "~\n", "two\n"));
  EXPECT_THAT(pieces({"one\r", "two\n"}), ElementsAre("one\r", "two\n"));
}

TEST(LineSplitter, ALineWithoutEndIsNotKeptForEver) { EXPECT_EQ(pieces({std::string(1 << 20, 'x')}).size(), 1U); }

}  // namespace
}  // namespace fsdprun
