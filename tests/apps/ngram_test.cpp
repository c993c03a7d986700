// Tests of Kneser-Ney smoothing on examples that were calculated by hand, and on WikiText-2.

#include <gtest/gtest.h>

#include <cmath>

#include "support/shared_data.h"
#include "text/corpus.h"
#include "text/ngram.h"
#include "text/tokenizers/words.h"

namespace text {
namespace {

constexpr int64_t kA = 0, kB = 1, kC = 2, kD = 3;

// The text is abab abc. After ab come a twice and c once, so D = 1 / (1 + 2 * 2). The lower orders have only counts of
// 1, so D = 1, which leaves 1/3 for every word.
TEST(KneserNey, DiscountsCountsAndSpreadsTheRest) {
  const Tokens text{kA, kB, kA, kB, kA, kB, kC}, context{kA, kB};
  const KneserNey model(text, 3);
  EXPECT_NEAR(model.probability(context, kA), (2 - 0.2 + 0.2 * 2 / 3) / 3, 1e-12);
  EXPECT_NEAR(model.probability(context, kC), (1 - 0.2 + 0.2 * 2 / 3) / 3, 1e-12);
  EXPECT_NEAR(model.probability(context, kB), (0.2 * 2 / 3) / 3, 1e-12);
}

// The text is abcbdb. b follows two different words, c and d follow one each. D = 2 / (2 + 2 * 1), and there is a
// fourth word.
TEST(KneserNey, CountsInLowerOrdersAfterHowManyDifferentWords) {
  const Tokens text{kA, kB, kC, kB, kD, kB};
  const KneserNey model(text, 4);
  EXPECT_NEAR(model.probability({}, kB), (2 - 0.5 + 0.5 * 3 / 4) / 4, 1e-12);
  EXPECT_NEAR(model.probability({}, kC), (1 - 0.5 + 0.5 * 3 / 4) / 4, 1e-12);
  EXPECT_NEAR(model.probability({}, kA), (0.5 * 3 / 4) / 4, 1e-12);
  const Tokens unseen{kD, kC};  // c comes after b only, so only the context c counts
  EXPECT_NEAR(model.probability(unseen, kB), model.probability(Tokens{kC}, kB), 1e-12);
}

TEST(KneserNey, GivesProbabilitiesThatSumToOneInEveryContext) {
  Tokens text;
  for (uint64_t i = 0, state = 1; i < 2000; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    text.push_back(static_cast<int64_t>((state >> 33U) % 10 * ((state >> 40U) % 3)) % 17);
  }
  constexpr int64_t kVocabulary = 20;
  const KneserNey model(text, kVocabulary);
  for (const Tokens& context : {Tokens{}, Tokens{3}, Tokens{19}, Tokens{2, 4}, Tokens{19, 2}, Tokens{9, 0, 0}}) {
    double sum = 0;
    for (int64_t token = 0; token < kVocabulary; ++token) sum += model.probability(context, token);
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(KneserNey, LivesWithTextsOfFewTokens) {
  EXPECT_NEAR(KneserNey(Tokens{0}, 2).perplexity(Tokens{1}), 2, 1e-12);
  EXPECT_TRUE(std::isfinite(KneserNey(Tokens(50, 0), 2).perplexity(Tokens{0, 1})));
}

TEST(KneserNey, RefusesTextsThatAreEmptyOrOutsideOfTheVocabulary) {
  EXPECT_THROW(KneserNey(Tokens{}, 2), std::invalid_argument);
  EXPECT_THROW(KneserNey(Tokens{0, 2}, 2), std::invalid_argument);
  EXPECT_THROW(KneserNey(Tokens{0}, int64_t{1} << 40), std::invalid_argument);
  EXPECT_THROW(KneserNey(Tokens{0}, 2).perplexity(Tokens{}), std::invalid_argument);
}

TEST(Unigram, HasTheSharesOfTheTrainingText) {
  EXPECT_NEAR(unigram_perplexity(Tokens{0, 0, 0, 1}, Tokens{0, 1}, 2), std::sqrt(4.0 / 3 * 4), 1e-12);
  EXPECT_NEAR(unigram_perplexity(Tokens{0, 0, 0}, Tokens{1}, 2), 4, 1e-12);
}

// The numbers of words are the published ones. The perplexities are those of a second program, which uses dictionaries
// instead of sorted arrays.
TEST(KneserNey, OfWikiTextHasThePerplexityThatASecondProgramGave) {
  FSDP_NEEDS_SHARED_DATA("wikitext-2");
  struct Part {
    const char *training, *text;
    int64_t vocabulary;
    size_t training_words, words;
    double unigram, kneser_ney;
  };
  std::vector<Part> parts{{"valid", "test", 13777, 217646, 245569, 557.7918, 239.5418}};
  if (fsdp::test::reads_large_files()) parts.push_back({"train", "valid", 33278, 2088628, 217646, 965.0861, 247.0566});
  for (const auto& part : parts) {
    const auto text_of = [](const std::string& name) {
      return read_text(fsdp::test::shared_data("wikitext-2/" + name + ".txt"));
    };
    const std::string training_text = text_of(part.training);
    const Words words(training_text);
    const Tokens training = words.encode(training_text), text = words.encode(text_of(part.text));
    EXPECT_EQ(words.vocabulary_size(), part.vocabulary);
    EXPECT_EQ(training.size(), part.training_words);
    EXPECT_EQ(text.size(), part.words);
    EXPECT_NEAR(unigram_perplexity(training, text, part.vocabulary), part.unigram, 1e-3);
    EXPECT_NEAR(KneserNey(training, part.vocabulary).perplexity(text), part.kneser_ney, 1e-3);
  }
}

}  // namespace
}  // namespace text
