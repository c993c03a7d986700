#include "state/ranks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fsdp/collectives.h>
#include <fsdp/error.h>

#include <algorithm>
#include <utility>

#include "comm/core/check.h"

namespace fsdp::state {
namespace {

// What an action came to: a mark, then what it returned or threw.
constexpr char kReturned = '+', kThrew = '-';

std::string outcome_of(const std::function<std::string()>& action) {
  try {
    return kReturned + action();
  } catch (const c10::Error& error) {
    return kThrew + std::string(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return kThrew + std::string(error.what());
  }
}

std::vector<std::string> gather(const std::string& own, const std::shared_ptr<ProcessGroup>& group,
                                const std::string& operation) {
  if (!group) return {own};
  const auto sizes = all_gather(at::full({}, static_cast<int64_t>(own.size()), at::kLong), group);
  std::vector<int64_t> offsets{0};
  for (int64_t r = 0; r < sizes.numel(); ++r) offsets.push_back(offsets.back() + sizes[r].item<int64_t>());
  const auto input = at::empty({static_cast<int64_t>(own.size())}, at::kByte),
             all = at::empty({offsets.back()}, at::kByte);
  std::copy(own.begin(), own.end(), input.mutable_data_ptr<uint8_t>());
  group->communicator().all_gather(all, input, offsets, {operation, {}})->wait();
  const auto* bytes = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
  std::vector<std::string> texts;
  for (size_t r = 0; r + 1 < offsets.size(); ++r) texts.emplace_back(bytes + offsets[r], bytes + offsets[r + 1]);
  return texts;
}

}  // namespace

std::string Ranks::where(const std::string& operation) const {
  return process_group_ ? process_group_->where(operation) : "[fsdp] " + operation + ": ";
}

void Ranks::broadcast(const at::Tensor& bytes, int root, const std::string& operation) const {
  if (process_group_) process_group_->communicator().broadcast(bytes, root, {operation, {}})->wait();
}

std::vector<std::string> Ranks::together(const std::string& operation,
                                         const std::function<std::string()>& action) const {
  auto texts = gather(outcome_of(action), process_group_, operation);
  std::vector<std::pair<std::string, std::vector<int>>> errors;  // what is said, and by whom
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
  if (!message.empty()) throw Error(where(operation) + message);
  return texts;
}

}  // namespace fsdp::state
