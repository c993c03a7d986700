// Compares GPT-2's tokens with tiktoken's.

#include <gmock/gmock.h>

#include <numeric>

#include "support/error_text.h"
#include "support/shared_data.h"
#include "text/corpus.h"
#include "text/tokenizers/gpt2_bpe.h"
#include "text/tokenizers/gpt2_splitter.h"

namespace text {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    pieces.emplace_back(text.substr(0, gpt2_piece(text)));
    text.remove_prefix(pieces.back().size());
  }
  return pieces;
}

// The pieces are what Python's regex.findall gives for GPT-2's pattern. Bytes that are not UTF-8 count as other
// characters.
TEST(Gpt2Pieces, AreTheMatchesOfItsPattern) {
  for (const auto& pieces : std::vector<std::vector<std::string>>{{"It", "'s", " they", "'ll", " DON", "'", "T"},
                                                                  {" '", "s", " ", " '", "s"},
                                                                  {"a", "12", " 3", ".", "5", " ++"},
                                                                  {"a", "  ", " b"},
                                                                  {"a", "\n", "\n", "b", "\n \n"},
                                                                  {"\t", "x", " "},
                                                                  {"Ünü", " ٣²", " 戦場の"},
                                                                  {"a", "\u00a0", "\u3000", "b"},
                                                                  {"e", "\u0301"},  // a combining mark is not a letter
                                                                  {"a", "\xff\xfe", " z"},
                                                                  {"\xc0\xaf"},        // overlong encoding
                                                                  {"\xed\xa0\x80"},    // half a surrogate pair
                                                                  {"x", "\xe6\x88"}})  // the last character is cut off
    EXPECT_EQ(pieces_of(std::accumulate(pieces.begin(), pieces.end(), std::string())), pieces);
}

TEST(Gpt2Bpe, MergesTheFirstPairOfTheListAndTheLeftmostOfEqualOnes) {
  const Gpt2Bpe bpe("#version: 0.2\na b\nb c\nab ab\na a\n");
  const int64_t a = 'a' - '!', c = 'c' - '!', ab = 256, bc = 257, abab = 258, aa = 259;
  EXPECT_EQ(bpe.vocabulary_size(), 256 + 4 + 1);
  EXPECT_THAT(bpe.encode("abc"), ElementsAre(ab, c));
  EXPECT_THAT(bpe.encode("bc"), ElementsAre(bc));
  EXPECT_THAT(bpe.encode("ababab"), ElementsAre(abab, ab));
  EXPECT_THAT(bpe.encode("aaa"), ElementsAre(aa, a));
}

TEST(Gpt2Bpe, GivesBackAnyBytes) {
  const Gpt2Bpe bpe("Ġ a\nÃ ¤\n");
  std::string text = " a ä <|endoftext|> \n";
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  EXPECT_EQ(bpe.decode(bpe.encode(text)), text);
  EXPECT_EQ(bpe.decode(Tokens{bpe.vocabulary_size() - 1}), "<|endoftext|>");
  EXPECT_THROW(bpe.decode(Tokens{bpe.vocabulary_size()}), std::out_of_range);
}

TEST(Gpt2Bpe, NamesTheLineThatIsNoMerge) {
  const auto error_of_merges = [](std::string_view merges) {
    return fsdp::test::text_of_error([&] { const Gpt2Bpe bpe(merges); });
  };
  EXPECT_THAT(error_of_merges("#version: 0.2\na b\nxy z\n"), ::testing::StartsWith("line 3 of the merges"));
  EXPECT_THAT(error_of_merges("ab\n"), ::testing::StartsWith("line 1 of the merges"));
  EXPECT_THAT(error_of_merges("#version: 0.2\n"), "expected merges, found none");
}

/// Returns FNV-1a over the numbers of tokens.
uint64_t checksum(const Tokens& tokens) {
  uint64_t sum = 14695981039346656037U;
  for (const int64_t token : tokens) sum = (sum ^ static_cast<uint64_t>(token)) * 1099511628211U;
  return sum;
}

// The numbers are those of tiktoken 0.14.0's GPT-2 encoding, made from the same two files by
// data_gym_to_mergeable_bpe_ranks:
//     for x in encoding.encode_ordinary(text): sum = (sum ^ x) * 1099511628211 % 2**64
TEST(Gpt2Bpe, GivesTiktokensTokensOnAllOfWikiText) {
  FSDP_NEEDS_SHARED_DATA("gpt2-bpe");
  FSDP_NEEDS_SHARED_DATA("wikitext-2");
  const Gpt2Bpe bpe(read_text(fsdp::test::shared_data("gpt2-bpe/vocab.bpe")));
  EXPECT_EQ(bpe.vocabulary_size(), 50257);
  EXPECT_THAT(bpe.encode("hello world"), ElementsAre(31373, 995));
  const auto expect = [&](const std::string& part, size_t count, uint64_t sum) {
    const std::string text = read_text(fsdp::test::shared_data("wikitext-2/" + part + ".txt"));
    const Tokens tokens = bpe.encode(text);
    EXPECT_EQ(tokens.size(), count) << part;
    EXPECT_EQ(checksum(tokens), sum) << part;
    EXPECT_EQ(bpe.decode(tokens), text) << part;
  };
  if (fsdp::test::reads_large_files()) expect("train", 2448382, 7724923113865870270U);
  expect("valid", 258659, 4620318640269766097U);
  expect("test", 295877, 17201981083412324244U);
}

}  // namespace
}  // namespace text
