#include "comm/core/local_communicator.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>

#include "comm/core/arguments.h"
#include "comm/core/check.h"
#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"

namespace fsdp {
namespace {

class DoneWork : public Work {
 public:
  explicit DoneWork(std::vector<uint8_t> votes) : votes_(std::move(votes)) {}
  void wait() override {}
  std::span<const uint8_t> votes() const override { return votes_; }

 private:
  const std::vector<uint8_t> votes_;
};

class LocalBuffer : public SharedBuffer {
 public:
  explicit LocalBuffer(c10::DataPtr memory) : memory_(std::move(memory)) {}
  void* data() const override { return memory_.get(); }
  void begin_read(uint64_t) override {}
  void end_read() override {}
  void while_waiting(std::function<bool()>) override {}
  void begin_write(uint64_t) override {}

 private:
  const c10::DataPtr memory_;
};

std::shared_ptr<Work> done(Tag& tag) { return std::make_shared<DoneWork>(std::move(tag.votes)); }

class LocalCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }

  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets,
                                   Tag tag) override {
    arguments_.check_all_gather(output, input, offsets, tag);
    if (output.const_data_ptr() != input.const_data_ptr()) output.detach().copy_(input.detach());
    return done(tag);
  }

  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, std::vector<Piece> input,
                                       std::span<const int64_t> offsets, double scale, Tag tag) override {
    arguments_.check_reduce_scatter(output, input, offsets, tag);
    assemble_into(output.detach(), std::move(input));
    scale_in_place(output.detach(), scale);
    return done(tag);
  }

  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp, Tag tag) override {
    arguments_.check_tensor(tensor, "all_reduce", tag);
    return done(tag);
  }

  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) override {
    arguments_.check_tensor(tensor, "broadcast", tag);
    arguments_.check_rank(root, "broadcast", tag, /*may_be_self=*/true);
    return done(tag);
  }

  std::shared_ptr<Work> send(const at::Tensor&, int, Tag) override { no_peer("send"); }
  std::shared_ptr<Work> recv(const at::Tensor&, int, Tag) override { no_peer("recv"); }
  std::shared_ptr<Work> barrier(Tag tag) override { return done(tag); }

  std::shared_ptr<Communicator> duplicate(const std::string&) override { return make_local_communicator(); }

  std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart> parts, c10::Device device) override {
    std::vector<std::shared_ptr<SharedBuffer>> buffers;
    for (const auto& part : parts) {
      auto memory = c10::GetAllocator(device.type())->allocate(part.bytes);
      at::from_blob(memory.get(), {static_cast<int64_t>(part.bytes)},
                    at::TensorOptions().dtype(at::kByte).device(device))
          .zero_();
      buffers.push_back(std::make_shared<LocalBuffer>(std::move(memory)));
    }
    return buffers;
  }
  void reserve(size_t) override {}
  void start_over() override {}

 private:
  [[noreturn]] static void no_peer(std::string_view operation) {
    throw UsageError(where(0, 1, operation) + "there is no other rank.");
  }

  const Arguments arguments_{0, 1};
};

}  // namespace

std::shared_ptr<Communicator> make_local_communicator() { return std::make_shared<LocalCommunicator>(); }

}  // namespace fsdp
