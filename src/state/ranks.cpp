#include "state/ranks.h"

#include <fsdp/error.h>

#include <algorithm>
#include <utility>

#include "comm/core/call_tag.h"
#include "comm/core/check.h"
#include "comm/group/texts.h"

namespace fsdp::state {
namespace {

// The outcome of an action is one of these marks, followed by the action's result or error message.
constexpr char kReturned = '+', kThrew = '-';

std::string outcome_of(const std::function<std::string()>& action) {
  try {
    return kReturned + action();
  } catch (const std::exception& error) {
    return kThrew + what_without_backtrace(error);
  }
}

}  // namespace

std::string Ranks::where() const { return process_group_ ? process_group_->where(call_) : "[fsdp] " + call_ + ": "; }

void Ranks::compare_issued() const {
  if (process_group_ && !process_group_->device().is_cpu())
    process_group_->communicator().barrier(call_tag(call_, path_))->wait();
}

void Ranks::broadcast(const at::Tensor& bytes, int root, const std::string& tensor) const {
  if (process_group_)
    process_group_->communicator().broadcast(bytes, root, call_tag(call_, path_, tensor))->wait();
}

void Ranks::collect(const std::string& own, int root,
                    const std::function<void(int rank, const std::string& text)>& take) const {
  if (!process_group_) return take(0, own);
  collect_texts(*process_group_, own, root, call_tag(call_, path_), take);
}

void Ranks::all_do(const std::function<void()>& action) const {
  together([&]() -> std::string {
    action();
    return {};
  });
}

std::vector<std::string> Ranks::together(const std::function<std::string()>& action) const {
  auto texts = std::vector{outcome_of(action)};
  if (process_group_) texts = gather_texts(*process_group_, texts.front(), call_tag(call_, path_));
  std::vector<std::pair<std::string, std::vector<int>>> errors;  // messages, and the ranks that threw them
  for (size_t r = 0; r < texts.size(); ++r) {
    const bool threw = texts[r][0] == kThrew;
    texts[r].erase(0, 1);
    if (!threw) continue;
    auto known = std::find_if(errors.begin(), errors.end(), [&](const auto& error) { return error.first == texts[r]; });
    if (known == errors.end()) known = errors.insert(known, {texts[r], {}});
    known->second.push_back(process_group_ ? process_group_->global_ranks()[r] : 0);
  }
  std::string message;
  for (const auto& [text, ranks] : errors) {
    if (!message.empty()) message += "; ";
    if (process_group_) message += str_cat(ranks.size() > 1 ? "ranks " : "rank ", str_join(", ", ranks), ": ");
    message += text;
  }
  if (!message.empty()) throw Error(where() + message);
  return texts;
}

}  // namespace fsdp::state
