#pragma once
/// \file
/// Bytes that a rank exchanged with others, by kind of link.

#include <cstdint>
#include <iosfwd>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// Bytes of tensors, without fingerprints, data small enough to travel with them, and transport headers. Data that an
/// accelerator's own backend (NCCL) moves is not counted.
struct Traffic {
  /// Bytes over one kind of link.
  struct Link {
    int64_t sent = 0;      ///< bytes from this rank
    int64_t received = 0;  ///< bytes to this rank
    /// Bytes exchanged since `before`.
    Link operator-(const Link& before) const { return {sent - before.sent, received - before.received}; }
    /// Whether the numbers are equal.
    bool operator==(const Link&) const = default;
  };
  /// Exchanged with ranks of other hosts.
  Link between_hosts;
  /// Exchanged with ranks of this host, over a network or copied through shared memory. Data that all ranks read in
  /// place in shared memory is not counted.
  Link inside_host;

  /// Bytes exchanged since `before`.
  Traffic operator-(const Traffic& before) const {
    return {between_hosts - before.between_hosts, inside_host - before.inside_host};
  }
  /// Whether the numbers are equal.
  bool operator==(const Traffic&) const = default;
};

/// Prints "between hosts 1.5 MB sent, ..."
std::ostream& operator<<(std::ostream& out, const Traffic& traffic);

/// This rank's traffic since it joined the default process group, over that group and all groups split from it. Any
/// thread. Throws UsageError before init_process_group().
///
///     const auto before = fsdp::traffic();
///     loss.backward();
///     std::cout << fsdp::traffic() - before << '\n';
Traffic traffic();

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
