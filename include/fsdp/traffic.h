#pragma once
/// \file
/// How much data a rank exchanged with others, over which kind of link.

#include <cstdint>
#include <iosfwd>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// Bytes of tensors: without fingerprints, what is so small that it goes with them, and the headers of a transport.
/// What an accelerator's own backend (NCCL) moves is not counted.
struct Traffic {
  /// What went over one kind of link.
  struct Link {
    int64_t sent = 0;      ///< bytes from this rank
    int64_t received = 0;  ///< bytes to this rank
    /// What went over it since `before`.
    Link operator-(const Link& before) const { return {sent - before.sent, received - before.received}; }
    /// Whether the numbers are equal.
    bool operator==(const Link&) const = default;
  };
  /// With ranks of other hosts.
  Link between_hosts;
  /// With ranks of this host: over a network, or copied through memory that they share. What lies in such memory once
  /// for all of them and is read there was not sent.
  Link inside_host;

  /// What was exchanged since `before`.
  Traffic operator-(const Traffic& before) const {
    return {between_hosts - before.between_hosts, inside_host - before.inside_host};
  }
  /// Whether the numbers are equal.
  bool operator==(const Traffic&) const = default;
};

/// "between hosts 1.5 MB sent, ..."
std::ostream& operator<<(std::ostream& out, const Traffic& traffic);

/// Of this rank since it joined the default group, over it and all groups that were split from it. Any thread. Throws
/// UsageError before init_process_group().
///
///     const auto before = fsdp::traffic();
///     loss.backward();
///     std::cout << fsdp::traffic() - before << '\n';
Traffic traffic();

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
