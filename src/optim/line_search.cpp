#include "optim/line_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fsdp::optim {
namespace {

constexpr double kDecrease = 1e-4, kCurvature = 0.9;
constexpr int64_t kMaxSteps = 25;

// Returns the step in [lowest, highest] at which the cubic through both trials' losses and slopes is smallest.
double least_of_cubic(const Trial& a, const Trial& b, double lowest, double highest) {
  const Trial& left = a.step <= b.step ? a : b;
  const Trial& right = a.step <= b.step ? b : a;
  const double d1 = left.slope + right.slope - 3 * (left.loss - right.loss) / (left.step - right.step);
  const double square = d1 * d1 - left.slope * right.slope;
  if (!(square >= 0)) return (lowest + highest) / 2;
  const double d2 = std::sqrt(square);
  const double least =
      right.step - (right.step - left.step) * ((right.slope + d2 - d1) / (right.slope - left.slope + 2 * d2));
  return std::min(std::max(least, lowest), highest);
}

class Search {
 public:
  Search(const Trial& start, const std::function<Trial(double)>& evaluate) : start_(start), evaluate_(evaluate) {}

  // Tries longer and longer steps until one satisfies the conditions, or one that does lies between `low_` and `high_`.
  void bracket(double step) {
    Trial before = start_, now = try_at(step);
    for (; steps_ < kMaxSteps; ++steps_) {
      if (rises(now) || (steps_ > 1 && now.loss >= before.loss)) return enclose(before, now);
      if (is_flat(now)) return accept(now);
      if (now.slope >= 0) return enclose(before, now);
      const double next = least_of_cubic(before, now, now.step + 0.01 * (now.step - before.step), 10 * now.step);
      before = std::exchange(now, try_at(next));
    }
    enclose(start_, now);
  }

  // Shortens the interval between `low_` and `high_` until a step satisfies the conditions. `moves` is the largest
  // change of a parameter's element for a step of 1.
  void narrow(double moves, double tolerance) {
    bool was_near_an_end = false;
    for (; !is_found_ && steps_ < kMaxSteps && std::abs(high_.step - low_.step) * moves >= tolerance; ++steps_) {
      const double first = std::min(low_.step, high_.step), last = std::max(low_.step, high_.step);
      double step = least_of_cubic(low_, high_, first, last);
      const double margin = 0.1 * (last - first);
      const bool is_near_an_end = std::min(last - step, step - first) < margin;
      const bool moves_away = is_near_an_end && (was_near_an_end || step >= last || step <= first);
      if (moves_away) step = last - step < step - first ? last - margin : first + margin;
      was_near_an_end = is_near_an_end && !moves_away;
      replace_an_end(try_at(step));
    }
  }

  FoundStep result() const { return {low_, evaluations_}; }

 private:
  Trial try_at(double step) {
    ++evaluations_;
    return evaluate_(step);
  }
  bool rises(const Trial& trial) const { return trial.loss > start_.loss + kDecrease * trial.step * start_.slope; }
  bool is_flat(const Trial& trial) const { return std::abs(trial.slope) <= -kCurvature * start_.slope; }

  void accept(const Trial& trial) {
    low_ = trial;
    is_found_ = true;
  }
  void enclose(const Trial& a, const Trial& b) {
    low_ = a;
    high_ = b;
    if (low_.loss > high_.loss) std::swap(low_, high_);
  }
  void replace_an_end(const Trial& trial) {
    if (rises(trial) || trial.loss >= low_.loss) return enclose(low_, trial);
    if (is_flat(trial)) return accept(trial);
    if (trial.slope * (high_.step - low_.step) >= 0) high_ = low_;
    low_ = trial;
  }

  const Trial& start_;
  const std::function<Trial(double)>& evaluate_;
  Trial low_, high_;  // the ends of the interval; low_ has the lower loss
  int64_t steps_ = 0, evaluations_ = 0;
  bool is_found_ = false;
};

}  // namespace

FoundStep search_strong_wolfe(const Trial& start, double step, double largest, double tolerance,
                              const std::function<Trial(double step)>& evaluate) {
  Search search(start, evaluate);
  search.bracket(step);
  search.narrow(largest, tolerance);
  return search.result();
}

}  // namespace fsdp::optim
