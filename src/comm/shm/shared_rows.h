#pragma once
/// \file
/// Groups' flat buffers, once per host: each rank's rows are its slices of them.

#include <fsdp/communicator.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/shm/peers.h"

namespace fsdp::shm {

/// In front of the buffer, one word per rank says in which epoch it reads (0: it does not).
///
/// A reader sets its word before it posts the barrier that opens its epoch, so whoever has met it there sees the word.
/// The gate is at the write: readers never wait for each other, and a writer only for slower readers. Thread safety:
/// all of it; `begin_read` and `end_read` take no lock.
class SharedRows : public SharedBuffer {
 public:
  /// Zeros of `bytes_needed`, which every rank has.
  SharedRows(std::shared_ptr<Peers> peers, std::shared_ptr<std::byte> memory, const std::string& subject);
  /// For a buffer of `bytes`, among others alike.
  static size_t bytes_needed(size_t bytes, int world_size);
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

/// A buffer for each part, all of them in one segment. Collective.
std::vector<std::shared_ptr<SharedBuffer>> share_rows(const std::shared_ptr<Peers>& peers,
                                                      std::span<const SharedPart> parts);

}  // namespace fsdp::shm
