#include "comm/shm/shared_rows.h"

#include "comm/core/fault_point.h"
#include "comm/core/text.h"

namespace fsdp::shm {

SharedRows::SharedRows(std::shared_ptr<Peers> peers, std::shared_ptr<std::byte> memory, const std::string& subject)
    : peers_(std::move(peers)), subject_("the rows of '" + subject + "'"), memory_(std::move(memory)) {}

size_t SharedRows::bytes_needed(size_t bytes, int world_size) {
  constexpr size_t kLine = alignof(Reading);
  return sizeof(Reading) * static_cast<size_t>(world_size) + (bytes + kLine - 1) / kLine * kLine;
}

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
  const auto lock = peers_->lock();
  end_read();
  peers_->announce("a write to " + subject_);
  fault_point("rows gate");
  std::chrono::milliseconds waited{0};
  for (int peer = 0; peer < peers_->world_size(); ++peer) {
    if (peer == peers_->rank()) continue;  // another thread may have begun to read
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

std::vector<std::shared_ptr<SharedBuffer>> share_rows(const std::shared_ptr<Peers>& peers,
                                                      std::span<const SharedPart> parts) {
  size_t bytes = 0;
  for (const auto& part : parts) bytes += SharedRows::bytes_needed(part.bytes, peers->world_size());
  auto purpose = "the rows of '" + parts.back().subject + "'";
  if (parts.size() > 1) purpose += str_cat(" and ", parts.size() - 1, " others");
  const auto memory = peers->share(bytes, purpose);
  std::vector<std::shared_ptr<SharedBuffer>> buffers;
  auto* next = memory.get();
  for (const auto& part : parts) {
    buffers.push_back(std::make_shared<SharedRows>(peers, std::shared_ptr<std::byte>(memory, next), part.subject));
    next += SharedRows::bytes_needed(part.bytes, peers->world_size());
  }
  return buffers;
}

}  // namespace fsdp::shm
