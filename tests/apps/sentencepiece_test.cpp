// Tests of the vocabularies that SentencePiece finds.

#include <embedded_text.h>
#include <gmock/gmock.h>

#include "support/error_text.h"
#include "text/tokenizers/sentencepiece.h"

namespace text {
namespace {

#define NEEDS_SENTENCEPIECE() \
  if (!has_sentencepiece()) GTEST_SKIP() << "built without SentencePiece"

constexpr size_t kLength = 20'000;

std::string_view play() { return std::string_view(fsdp::tiny_shakespeare()).substr(0, kLength); }

TEST(SentencePiece, HasAsManyTokensAsAskedForAndGivesBackWhatWasEncoded) {
  NEEDS_SENTENCEPIECE();
  const auto model = train_sentencepiece(play(), 500);
  EXPECT_EQ(train_sentencepiece(play(), 500), model) << "of the same text";
  const SentencePiece pieces(model);
  EXPECT_EQ(pieces.vocabulary_size(), 500);
  EXPECT_LT(pieces.encode(play()).size(), kLength * 2 / 3) << "fewer than characters";
  for (const std::string& text : {std::string(play()), std::string(), std::string("no line break"), std::string("\n\n"),
                                  std::string("  two  blanks, \ta tab \n 戦場 \xF0\x9F\x98\x80\n")})
    EXPECT_EQ(pieces.decode(pieces.encode(text)), text);
  for (const int64_t token : {500, -1}) EXPECT_THROW(pieces.decode(Tokens{token}), std::out_of_range);
  EXPECT_THROW(SentencePiece("rubbish"), std::invalid_argument);
}

TEST(SentencePiece, RefusesSizesThatTheTextDoesNotGive) {
  NEEDS_SENTENCEPIECE();
  const auto error_of_size = [](int64_t size) {
    return fsdp::test::text_of_error([&] { train_sentencepiece("a short text\nof two lines\n", size); });
  };
  EXPECT_THAT(error_of_size(10),
              ::testing::StartsWith("SentencePiece cannot make a vocabulary of 10 tokens from this text: "
                                    "Vocabulary size is smaller"));
  EXPECT_THAT(error_of_size(100000), ::testing::HasSubstr("Vocabulary size too high"));
}

}  // namespace
}  // namespace text
