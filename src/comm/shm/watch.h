#pragma once
/// \file
/// One wait of a rank for another, looked at from time to time.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/core/ranks.h"
#include "comm/failure/verdict.h"
#include "comm/shm/host_page.h"
#include "comm/shm/links.h"

namespace fsdp::shm {

/// How long a waiting rank sleeps before it looks whether its waiting is in vain.
constexpr std::chrono::milliseconds kLook{100};

/// A thread of this rank waits for `peer` while it lives. `page` may be null: it is what ranks wait for first.
class Watch {
 public:
  /// `waited`: see Peers::wait_for; all references must outlive this object.
  Watch(HostPage* page, const Links& links, const Ranks& ranks, int peer, std::chrono::milliseconds timeout,
        std::chrono::milliseconds& waited);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Why waiting is in vain, if it is; call after each sleep.
  std::optional<Verdict> look();

 private:
  Verdict lost(int rank, const std::string& how) const;
  Verdict timed_out() const;
  bool has_left(int rank) const;
  void count();

  HostPage* const page_;
  const Links& links_;
  const Ranks& ranks_;
  const int peer_;
  const std::chrono::milliseconds timeout_;
  std::chrono::milliseconds& waited_;
  std::chrono::steady_clock::time_point last_look_;
};

/// "Last operations: rank 0: ...; rank 1: ..."
std::string last_operations(const HostPage& page, const Ranks& ranks);

}  // namespace fsdp::shm
