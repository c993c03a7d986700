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
  const int64_t ring = ranks_of(ring_);
  return {length, ring, method_ == SequenceMethod::kHeadTail && ring > 1, ranks_of(heads_)};
}

SequenceLayout SequenceScope::deal(int64_t length, const std::string& operation) {
  require(length >= ranks(), where(operation), "expected at least one token for each of ", ranks(),
          " ranks, found a sequence of ", length, " tokens. Use fewer ranks on the sequence axis.");
  const auto dealt = layout(length);
  const auto [known, is_new] = lengths_.try_emplace(dealt.own_length(), length);
  require(is_new || known->second == length, where(operation), "sequences of ", length, " and of ", known->second,
          " tokens cannot share a scope: each rank has ", dealt.own_length() / dealt.parts,
          " tokens of both, so attention cannot tell which of them are padding. Pad both sequences to the same length, "
          "or open a scope for each of them.");
  return dealt;
}

SequenceLayout SequenceScope::layout_of(int64_t own_length, const std::string& operation) const {
  const auto known = lengths_.find(own_length);
  if (known != lengths_.end()) return layout(known->second);
  const auto whole = layout(own_length * ranks_of(ring_));
  require(whole.own_length() == own_length, where(operation),
          "expected an even number of tokens, of which this rank has one half from the sequence's head and one from "
          "its tail, found ",
          own_length / whole.parts, ". Split the sequence with SequenceParallel::shard, which pads it.");
  return whole;
}

const std::shared_ptr<SequenceScope>& SequenceScope::current() { return of_this_thread(); }

SequenceScope::Entered::Entered(std::shared_ptr<SequenceScope> scope)
    : before_(std::exchange(of_this_thread(), std::move(scope))) {}

SequenceScope::Entered::~Entered() { of_this_thread() = std::move(before_); }

}  // namespace fsdp::parallel
