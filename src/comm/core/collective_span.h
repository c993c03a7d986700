#pragma once
/// \file
/// A collective on the rank's timeline.

#include <string_view>

#include "comm/core/fingerprint.h"
#include "comm/core/ranks.h"
#include "comm/core/timeline.h"

namespace fsdp {

/// Begins it. `order`: the name of the communicator whose order it is in; empty: the main one.
inline Span collective_span(const Ranks& ranks, const Fingerprint& fingerprint, std::string_view order) {
  if (ranks.timeline == nullptr || !ranks.timeline->is_on()) return {};
  auto entry = TimelineEntry::of(Track::kCommunication, name_of(fingerprint.operation), fingerprint.text.data(), order);
  entry.sequence = fingerprint.sequence;
  entry.bytes = fingerprint.bytes;
  return {ranks.timeline, entry};
}

}  // namespace fsdp
