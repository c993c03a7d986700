#include "text/tokenizers/sentencepiece.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

namespace text {
namespace {

constexpr int kErrorsOnly = 2;

/// An iterator over the lines of a text, from which SentencePiece's trainer reads.
class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(std::string_view text) : rest_(text) { Next(); }

  bool done() const override { return is_done_; }
  void Next() override {
    is_done_ = rest_.empty();
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
  }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::string_view rest_;
  std::string line_;
  bool is_done_ = false;
};

/// Returns the message of an error without the location in SentencePiece's sources.
std::string reason_of(const sentencepiece::util::Status& status) {
  const std::string message = status.message();
  const size_t place = message.rfind("] ");
  return place == message.npos ? message : message.substr(place + 2);
}

void check(const sentencepiece::util::Status& status, const std::string& what) {
  if (status.ok()) return;
  const std::string reason = reason_of(status);
  throw std::invalid_argument(reason.empty() ? what : what + ": " + reason);
}

}  // namespace

bool has_sentencepiece() { return true; }

std::string train_sentencepiece(std::string_view text, int64_t vocabulary_size) {
  Lines lines(text);
  std::string model;
  const auto status =
      sentencepiece::SentencePieceTrainer::Train({{"vocab_size", std::to_string(vocabulary_size)},
                                                  {"model_type", "unigram"},
                                                  {"byte_fallback", "true"},
                                                  // With these settings, decoding returns the original text.
                                                  {"normalization_rule_name", "identity"},
                                                  {"remove_extra_whitespaces", "false"},
                                                  {"add_dummy_prefix", "false"},
                                                  {"num_threads", "1"},  // with more threads, models could differ
                                                  {"minloglevel", std::to_string(kErrorsOnly)}},
                                                 &lines, &model);
  check(status,
        "SentencePiece cannot make a vocabulary of " + std::to_string(vocabulary_size) + " tokens from this text");
  return model;
}

struct SentencePiece::Processor : sentencepiece::SentencePieceProcessor {
  int line_break = 0;
};

SentencePiece::SentencePiece(std::string_view model) : processor_(std::make_unique<Processor>()) {
  const auto status = processor_->LoadFromSerializedProto({model.data(), model.size()});
  if (!status.ok()) throw std::invalid_argument("these bytes are not a SentencePiece model");
  processor_->line_break = processor_->PieceToId("<0x0A>");
}

SentencePiece::~SentencePiece() = default;

int64_t SentencePiece::vocabulary_size() const { return processor_->GetPieceSize(); }

Tokens SentencePiece::encode(std::string_view text) const {
  Tokens tokens;
  std::vector<int> line_tokens;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    check(processor_->Encode({line.data(), line.size()}, &line_tokens), "SentencePiece cannot encode a line");
    tokens.insert(tokens.end(), line_tokens.begin(), line_tokens.end());
    if (end == text.npos) break;
    tokens.push_back(processor_->line_break);
    text.remove_prefix(end + 1);
  }
  return tokens;
}

std::string SentencePiece::decode(std::span<const int64_t> tokens) const {
  for (const int64_t token : tokens) {
    if (token < 0 || token >= vocabulary_size()) {
      throw std::out_of_range("token " + std::to_string(token) + " is not in a vocabulary of " +
                              std::to_string(vocabulary_size()));
    }
  }
  std::string text;
  check(processor_->Decode(std::vector<int>(tokens.begin(), tokens.end()), &text),
        "SentencePiece cannot decode the tokens");
  return text;
}

}  // namespace text
