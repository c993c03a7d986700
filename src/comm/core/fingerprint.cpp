#include "comm/core/fingerprint.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>

#include "comm/core/text.h"

namespace fsdp {
namespace {

// FNV-1a gives the same hash on every rank and in every build; std::hash does not promise this.
constexpr uint64_t kHashOfNothing = 0xcbf29ce484222325u;

uint64_t hash_bytes(const void* data, size_t size, uint64_t hash = kHashOfNothing) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

bool is_point_to_point(Operation operation) { return operation == Operation::kSend || operation == Operation::kRecv; }

// A send matches only a recv and a recv only a send; any other operation matches itself.
bool operations_fit(const Fingerprint& a, const Fingerprint& b) {
  if (a.operation == Operation::kSend) return b.operation == Operation::kRecv;
  if (a.operation == Operation::kRecv) return b.operation == Operation::kSend;
  return a.operation == b.operation;
}

}  // namespace

std::string_view name_of(Operation operation) {
  constexpr std::array<std::string_view, 11> kNames{"all_gather",
                                                    "reduce_scatter",
                                                    "all_reduce(sum)",
                                                    "all_reduce(max)",
                                                    "all_reduce(min)",
                                                    "all_to_all",
                                                    "broadcast",
                                                    "send",
                                                    "recv",
                                                    "barrier",
                                                    "duplicate"};
  const auto number = static_cast<size_t>(operation);
  return number < kNames.size() ? kNames[number] : "unknown operation";
}

Operation all_reduce_operation(ReduceOp op) {
  if (op == ReduceOp::kMax) return Operation::kAllReduceMax;
  return op == ReduceOp::kMin ? Operation::kAllReduceMin : Operation::kAllReduceSum;
}

Fingerprint make_fingerprint(Operation operation, const Tag& tag) {
  Fingerprint fingerprint;
  fingerprint.operation = operation;
  fingerprint.subject_hash = hash_bytes(tag.subject.data(), tag.subject.size());
  fingerprint.count = tag.count.number;
  fingerprint.group = tag.group;
  // Each of the two texts is followed by at least one zero, because `text` was zero-filled.
  const auto counted = tag.count.number == 0 ? "" : tag.count.of.substr(0, Fingerprint::kTextBytes / 2);
  const size_t kept = std::min(tag.text().size(), Fingerprint::kTextBytes - counted.size() - 2);
  std::memcpy(fingerprint.text.data(), tag.text().data(), kept);
  std::memcpy(fingerprint.text.data() + kept + 1, counted.data(), counted.size());
  return fingerprint;
}

void describe_data(Fingerprint& fingerprint, std::span<const at::Tensor> planes, int times) {
  fingerprint.planes = static_cast<uint32_t>(planes.size());
  fingerprint.dtype = static_cast<int8_t>(planes.front().scalar_type());
  fingerprint.device = static_cast<int8_t>(planes.front().device().type());
  fingerprint.bytes = 0;
  fingerprint.lengths = fingerprint.dtypes = kHashOfNothing;
  for (const auto& plane : planes) {
    fingerprint.bytes += plane.nbytes() * static_cast<uint64_t>(times);
    const int64_t numel = plane.numel();
    const auto dtype = plane.scalar_type();
    fingerprint.lengths = hash_bytes(&numel, sizeof(numel), fingerprint.lengths);
    fingerprint.dtypes = hash_bytes(&dtype, sizeof(dtype), fingerprint.dtypes);
  }
}

uint64_t hash_compared(const Fingerprint& fingerprint, uint64_t before) {
  return hash_bytes(&fingerprint, offsetof(Fingerprint, text), before);
}

std::string describe(const Fingerprint& fingerprint, const Ranks& ranks) {
  std::string text(name_of(fingerprint.operation));
  if (fingerprint.text[0] != '\0') text.append(" of '").append(fingerprint.subject()).append("'");
  if (fingerprint.operation == Operation::kSend) text += str_cat(" to rank ", ranks.name_of(fingerprint.peer));
  if (fingerprint.operation == Operation::kRecv) text += str_cat(" from rank ", ranks.name_of(fingerprint.peer));
  return text.append(" (#").append(std::to_string(fingerprint.sequence)).append(")");
}

std::string describe_fully(const Fingerprint& fingerprint, const Ranks& ranks) {
  std::string text = describe(fingerprint, ranks);
  if (fingerprint.dtype >= 0) {
    const auto* dtype = c10::toString(static_cast<c10::ScalarType>(fingerprint.dtype));
    text += str_cat(", ", fingerprint.bytes, " bytes");
    text += fingerprint.planes > 1 ? str_cat(" in ", fingerprint.planes, " tensors, the first of ", dtype)
                                   : str_cat(" of ", dtype);
    const auto device = static_cast<c10::DeviceType>(fingerprint.device);
    if (device != c10::kCPU) text += " on " + c10::DeviceTypeName(device, /*lower_case=*/true);
  }
  if (fingerprint.group > 0) text += str_cat(", group ", fingerprint.group);
  if (fingerprint.operation == Operation::kBroadcast) text += str_cat(", root ", ranks.name_of(fingerprint.peer));
  if (fingerprint.count > 0) text += str_cat(", ", fingerprint.counted(), ": ", fingerprint.count);
  return text;
}

Span collective_span(const Ranks& ranks, const Fingerprint& fingerprint) {
  if (ranks.timeline == nullptr || !ranks.timeline->is_on()) return {};
  return {ranks.timeline,
          {.is_communication = true,
           .name = std::string(name_of(fingerprint.operation)),
           .subject = fingerprint.subject(),
           .sequence = fingerprint.sequence,
           .bytes = fingerprint.bytes}};
}

std::string difference(const Fingerprint& a, int rank_of_a, const Fingerprint& b, int rank_of_b) {
  std::string names;
  const auto note = [&](bool differs, std::string_view name) {
    if (!differs) return;
    if (!names.empty()) names += ", ";
    names += name;
  };
  note(!operations_fit(a, b), "operation");
  note(a.subject_hash != b.subject_hash, "subject");
  note(a.group != b.group, "group");
  note(a.sequence != b.sequence, "position in the queue");
  note(a.bytes != b.bytes, "bytes");
  note(a.planes != b.planes, "number of tensors");
  // The length of a single tensor follows from its bytes and its dtype.
  note(a.lengths != b.lengths && a.planes == b.planes && a.planes > 1, "lengths of the tensors");
  note(a.dtypes != b.dtypes && a.planes == b.planes, "dtype");
  note(a.device != b.device, "device");
  note(a.count != b.count, (a.count > 0 ? a : b).counted());
  if (is_point_to_point(a.operation) && is_point_to_point(b.operation)) {
    note(a.peer != rank_of_b || b.peer != rank_of_a, "peer");
  } else if (a.operation == b.operation) {
    note(a.peer != b.peer, "root");
  }
  return names;
}

}  // namespace fsdp
