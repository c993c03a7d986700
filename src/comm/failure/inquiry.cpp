#include "comm/failure/inquiry.h"

#include <algorithm>

#include "comm/core/text.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// As over shared memory: nothing moves for so long before ranks are taken to stand still.
constexpr milliseconds kQuiet{1000};
// All ranks wait when they are asked: whoever does not answer moves again.
constexpr milliseconds kAnswerTime{3000};
constexpr milliseconds kFirstPause{2000}, kLongestPause{32'000};

}  // namespace

// Note [Inquiry]
// Keys, all under the roll call's prefix:
//   waiting         how many ranks stand still
//   questions       the number of the last question
//   standing/Q/R    rank R's answer to question Q
// Only ranks that are counted answer. A wrong verdict would end a training that only waits for a slow network, so it
// takes certainty: see find_deadlock.

std::optional<Verdict> Inquiry::look(const Standing& own) {
  const auto now = Clock::now();
  if (own.waits.empty() || own.moves != moves_) {
    withdraw();
    moves_ = own.moves;
    still_since_ = now;
    return std::nullopt;
  }
  if (now - still_since_ < kQuiet) return std::nullopt;
  if (!is_counted_) {
    is_counted_ = true;
    asks_ = store_->add("waiting", 1) == ranks_.world_size;
    next_ = now;
    pause_ = kFirstPause;
  }
  answer(own);
  return asks_ ? ask(own, now) : std::nullopt;
}

void Inquiry::withdraw() {
  if (is_counted_) store_->add("waiting", -1);
  is_counted_ = asks_ = false;
  question_ = 0;
  before_.clear();
}

void Inquiry::answer(const Standing& own) {
  const int64_t last = store_->add("questions", 0);
  if (last <= answered_) return;
  answered_ = last;
  store_->set(str_cat("standing/", last, '/', ranks_.rank), encode(own));
  brisk_until_ = Clock::now() + kQuiet;
}

std::optional<Verdict> Inquiry::ask(const Standing& own, Time now) {
  if (question_ == 0) {
    if (now >= next_) ask_next(own, now);
    return std::nullopt;
  }
  const auto keys = answers_to_question();
  if (!store_->check(keys)) {
    if (now - asked_at_ > kAnswerTime) give_up(now);
    return std::nullopt;
  }
  std::vector<Standing> answers;
  for (const auto& key : keys) answers.push_back(decode<Standing>(store_->get_to_str(key)));
  if (before_.empty()) {
    before_ = std::move(answers);
    ask_next(own, now);
    return std::nullopt;
  }
  auto verdict = find_deadlock(ranks_, before_, answers);
  if (!verdict) give_up(now);
  return verdict;
}

void Inquiry::ask_next(const Standing& own, Time now) {
  question_ = answered_ = store_->add("questions", 1);
  store_->set(str_cat("standing/", question_, '/', ranks_.rank), encode(own));
  asked_at_ = now;
  brisk_until_ = now + kAnswerTime;
}

// Something is on its way, or another rank asks as well.
void Inquiry::give_up(Time now) {
  question_ = 0;
  before_.clear();
  next_ = now + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
}

std::vector<std::string> Inquiry::answers_to_question() const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < ranks_.world_size; ++rank) keys.push_back(str_cat("standing/", question_, '/', rank));
  return keys;
}

}  // namespace fsdp
