// Tests of characters, words and corpora.

#include <gmock/gmock.h>

#include <fstream>

#include "support/error_text.h"
#include "support/shared_data.h"
#include "text/corpus.h"
#include "text/tokenizers/characters.h"
#include "text/tokenizers/words.h"

namespace text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string file_with(std::string_view content) {
  const std::string path = ::testing::TempDir() + "text_corpus";
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST(Characters, AreNumberedByTheirCodesAndGiveBackAnyBytes) {
  const Characters characters("abracadabra");
  EXPECT_EQ(characters.vocabulary_size(), 5);
  EXPECT_THAT(characters.encode("bad"), ElementsAre(1, 0, 3));
  const std::string text = "two\n\xff\xe2\x82\xac\t";
  const Characters bytes(text);
  EXPECT_EQ(bytes.decode(bytes.encode(text)), text);
}

TEST(Characters, RefuseWhatTheVocabularyDoesNotHave) {
  const Characters characters("abc");
  EXPECT_THAT(fsdp::test::text_of_error([&] { characters.encode("abz"); }),
              HasSubstr("byte 2 of the text has the code 122"));
  EXPECT_THROW(characters.decode(Tokens{3}), std::out_of_range);
  EXPECT_THROW(characters.decode(Tokens{-1}), std::out_of_range);
  EXPECT_THROW(Characters(""), std::invalid_argument);
}

TEST(Words, AreNumberedAsTheyComeAfterTheEndOfLine) {
  const Words words(" a rose is\ta  rose \n\nred\n");
  EXPECT_EQ(words.vocabulary_size(), 5 + 1);  // and <unk>
  EXPECT_THAT(words.encode(" a rose is\ta  rose \n\nred\n"), ElementsAre(1, 2, 3, 1, 2, 0, 0, 4, 0));
}

TEST(Words, HaveAnEndOfLineForEachLineBreakOnlyAndDecodeToOneBlankBetweenThem) {
  const Words letters("a b");
  EXPECT_THAT(letters.encode("a\nb"), ElementsAre(1, 0, 2));
  EXPECT_THAT(letters.encode("a\nb\n"), ElementsAre(1, 0, 2, 0));
  EXPECT_THAT(letters.encode(""), ElementsAre());
  const Words words("a rose\n");
  EXPECT_EQ(words.decode(words.encode("a  rose \n\n rose\n")), "a rose\n\nrose\n");
  EXPECT_THROW(words.decode(Tokens{4}), std::out_of_range);
}

TEST(Words, OutsideOfTheVocabularyAreUnkWhichEveryVocabularyHas) {
  const Words with("a <unk> b\n"), without("a b\n");
  EXPECT_EQ(with.vocabulary_size(), without.vocabulary_size());
  EXPECT_THAT(with.encode("a c b\n"), ElementsAre(1, 2, 3, 0));
  EXPECT_THAT(without.encode("a c b\n"), ElementsAre(1, 3, 2, 0));
  EXPECT_EQ(without.decode(without.encode("a c\n")), "a <unk>\n");
  for (const auto* text : {"", " \n \n"}) EXPECT_THROW(Words{text}, std::invalid_argument);
}

TEST(Corpus, OfAFileHasNineTenthsForTraining) {
  const Corpus corpus = read_corpus(file_with("0123456789abcdefghij"));
  EXPECT_EQ(corpus.training, "0123456789abcdefgh");
  EXPECT_EQ(corpus.validation, "ij");
}

TEST(Corpus, OfAFolderHasAFileForEachPart) {
  const std::string folder = ::testing::TempDir() + "text_corpus_folder";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/train.txt") << "train";
  EXPECT_THAT(fsdp::test::text_of_error([&] { read_corpus(folder); }), HasSubstr("valid.txt': No such file"));
  std::ofstream(folder + "/valid.txt") << "valid";
  EXPECT_EQ(read_corpus(folder).training, "train");
  EXPECT_EQ(read_corpus(folder).validation, "valid");
}

TEST(Corpus, NeedsAFileWithText) {
  EXPECT_THAT(fsdp::test::text_of_error([] { read_text("no such file"); }),
              HasSubstr("cannot read 'no such file': No such file"));
  EXPECT_THAT(fsdp::test::text_of_error([] { read_text(::testing::TempDir()); }), HasSubstr("Is a directory"));
  EXPECT_THAT(fsdp::test::text_of_error([] { read_text(file_with("")); }), HasSubstr("is empty"));
  EXPECT_THAT(fsdp::test::text_of_error([] { read_text(file_with(std::string_view("ab\0c", 4))); }),
              HasSubstr("is not a text file: byte 2 is zero"));
}

}  // namespace
}  // namespace text
