#pragma once
/// \file
/// Sequences that several ranks share: --sequence and --sequence-method.

#include <fsdp/process_group.h>
#include <fsdp/sequence_parallel.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "arguments.h"

namespace gpt {

/// What --sequence-method takes.
const std::map<std::string, fsdp::SequenceMethod>& sequence_methods();

/// Neighbouring ranks share sequences, `ranks` of them each; of the batch all these have the same share.
struct SequenceAxis {
  /// Null: each rank has whole sequences.
  std::shared_ptr<fsdp::ProcessGroup> group;
  fsdp::SequenceMethod method = fsdp::SequenceMethod::kHeadTail;
  /// Which share of the batch this rank has, and how many shares there are.
  int64_t share = 0, shares = 1;

  /// Opens the scope in which attention goes over the ranks of the axis, where there are several.
  std::optional<fsdp::SequenceParallel> open() const;
};

/// As the flags say. Collective. Throws std::invalid_argument where the number of ranks does not divide.
SequenceAxis sequence_axis(const Arguments& arguments);

}  // namespace gpt
