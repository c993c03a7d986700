#include "parallel/sequence_scope.h"

#include "comm/core/check.h"

namespace fsdp::parallel {
namespace {

std::shared_ptr<SequenceScope>& of_this_thread() {
  static thread_local std::shared_ptr<SequenceScope> scope;
  return scope;
}

}  // namespace

SequenceLayout SequenceScope::layout(int64_t length) const {
  return {length, group_->world_size(), method_ == SequenceMethod::kHeadTail && group_->world_size() > 1};
}

SequenceLayout SequenceScope::deal(int64_t length, const std::string& operation) {
  require(length >= group_->world_size(), group_->where(operation), "expected at least one token for each of ",
          group_->world_size(), " ranks, found a sequence of ", length, ". Use fewer ranks for the sequence's axis.");
  const auto dealt = layout(length);
  const auto [known, is_new] = lengths_.try_emplace(dealt.own_length(), length);
  require(is_new || known->second == length, group_->where(operation), "expected lengths whose parts differ, found ",
          length, " after ", known->second, ": each rank has ", dealt.own_length(),
          " tokens of both, so attention cannot tell which of them are padding. Pad both to one length, or open a "
          "scope for each of them.");
  return dealt;
}

SequenceLayout SequenceScope::layout_of(int64_t own_length, const std::string& operation) const {
  const auto known = lengths_.find(own_length);
  if (known != lengths_.end()) return layout(known->second);
  const auto whole = layout(own_length * group_->world_size());
  require(whole.own_length() == own_length, group_->where(operation),
          "expected an even number of tokens, of which this rank has one half from the sequence's head and one from "
          "its tail, found ",
          own_length, ". Deal the sequence with SequenceParallel::shard, which pads it.");
  return whole;
}

const std::shared_ptr<SequenceScope>& SequenceScope::current() { return of_this_thread(); }

SequenceScope::Entered::Entered(std::shared_ptr<SequenceScope> scope)
    : before_(std::exchange(of_this_thread(), std::move(scope))) {}

SequenceScope::Entered::~Entered() { of_this_thread() = std::move(before_); }

}  // namespace fsdp::parallel
