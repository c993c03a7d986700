#pragma once
/// \file
/// A group's flat buffer, once per host: each rank's rows are its slice of it.

#include <fsdp/communicator.h>

#include <atomic>
#include <memory>
#include <string>

#include "comm/shm/peers.h"

namespace fsdp::shm {

/// In front of the buffer, one word per rank says in which epoch it reads (0: it does not).
///
/// A reader sets its word before it posts the barrier that opens its epoch, so whoever has met it there sees the word.
/// The gate is at the write: readers never wait for each other, and a writer only for slower readers.
class SharedRows : public SharedBuffer {
 public:
  /// Collective.
  SharedRows(std::shared_ptr<Peers> peers, size_t bytes, std::string subject);
  ~SharedRows() override { end_read(); }

  void* data() const override;
  void begin_read(uint64_t epoch) override;
  void end_read() override;
  void begin_write(uint64_t epoch) override;

 private:
  struct alignas(64) Reading {
    std::atomic<uint64_t> epoch;
  };
  Reading* words() const { return reinterpret_cast<Reading*>(memory_.get()); }

  const std::shared_ptr<Peers> peers_;
  const std::string subject_;
  const std::shared_ptr<std::byte> memory_;
};

}  // namespace fsdp::shm
