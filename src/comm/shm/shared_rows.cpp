#include "comm/shm/shared_rows.h"

#include "comm/fault_point.h"

namespace fsdp::shm {

SharedRows::SharedRows(std::shared_ptr<Peers> peers, size_t bytes, std::string subject)
    : peers_(std::move(peers)),
      subject_("the rows of '" + std::move(subject) + "'"),
      memory_(peers_->share(bytes + sizeof(Reading) * static_cast<size_t>(peers_->world_size()), subject_)) {}

void* SharedRows::data() const { return words() + peers_->world_size(); }

void SharedRows::begin_read(uint64_t epoch) {
  words()[peers_->rank()].epoch.store(epoch, std::memory_order_release);
  fault_point("rows reading");
}

void SharedRows::end_read() {
  auto& own = words()[peers_->rank()].epoch;
  if (own.load(std::memory_order_relaxed) == 0 || !peers_->is_own_process()) return;
  fault_point("rows read");
  own.store(0, std::memory_order_release);
  peers_->ring();
}

void SharedRows::begin_write(uint64_t epoch) {
  end_read();
  peers_->announce("a write to " + subject_);
  fault_point("rows gate");
  std::chrono::milliseconds waited{0};
  for (int peer = 0; peer < peers_->world_size(); ++peer) {
    const auto& reading = words()[peer].epoch;
    const auto reads_no_more = [&] {
      const uint64_t read = reading.load(std::memory_order_acquire);
      return read == 0 || read > epoch || peers_->has_left(peer);
    };
    peers_->wait_for(peer, reads_no_more, waited);
  }
  fault_point("rows writing");
  peers_->announce_end();
}

}  // namespace fsdp::shm
