#pragma once
/// \file
/// Number of bytes that a rank exchanged with other ranks, by kind of link.

#include <cstdint>
#include <iosfwd>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// Number of bytes of tensors that a rank exchanged. It leaves out fingerprints, data that is small enough to travel
/// with a fingerprint, transport headers, and data that an accelerator's own backend (NCCL) moves.
struct Traffic {
  /// Number of bytes over one kind of link.
  struct Link {
    int64_t sent = 0;      ///< number of bytes that this rank sent
    int64_t received = 0;  ///< number of bytes that this rank received
    /// Returns the bytes exchanged since `before`.
    Link operator-(const Link& before) const { return {sent - before.sent, received - before.received}; }
    /// Returns true if the numbers are equal.
    bool operator==(const Link&) const = default;
  };
  /// Bytes exchanged with ranks of other hosts.
  Link between_hosts;
  /// Bytes exchanged with ranks of this host, over a network or copied through shared memory. Data that all ranks read
  /// in place in shared memory is not counted.
  Link inside_host;

  /// Returns the bytes exchanged since `before`.
  Traffic operator-(const Traffic& before) const {
    return {between_hosts - before.between_hosts, inside_host - before.inside_host};
  }
  /// Returns true if the numbers are equal.
  bool operator==(const Traffic&) const = default;
};

/// Prints the numbers as text, "between hosts 1.5 MB sent, ...".
std::ostream& operator<<(std::ostream& out, const Traffic& traffic);

/// Returns this rank's traffic since it joined the default process group, over that group and all groups split from it.
/// Any thread may call this function. Throws UsageError before init_process_group().
///
///     const auto before = fsdp::traffic();
///     loss.backward();
///     std::cout << fsdp::traffic() - before << '\n';
Traffic traffic();

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
