// The communicator of a group of one rank.

#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>

#include <optional>

#include "comm/core/current_stream.h"
#include "comm/core/fingerprint.h"
#include "comm/core/front.h"
#include "comm/core/pieces.h"

namespace fsdp {
namespace {

// Work that is done when all work is done that was queued, at its construction, on the current stream. wait() makes the
// waiting thread's current stream wait for that work.
class DoneWork : public Work {
 public:
  explicit DoneWork(c10::Device device) {
    if (device.is_cpu()) return;
    done_.emplace(device.type());
    done_->record(current_stream(device));
  }
  void wait() override {
    if (done_) done_->block(current_stream(done_->device()));
  }
  bool lets_others_go_on() const override { return true; }

 private:
  std::optional<c10::Event> done_;
};

class LocalBuffer : public SharedBuffer {
 public:
  explicit LocalBuffer(at::Tensor memory) : memory_(std::move(memory)) {}
  void* data() const override { return memory_.mutable_data_ptr(); }
  void begin_read(uint64_t) override {}
  void end_read() override {}
  void begin_write(uint64_t) override {}

 private:
  const at::Tensor memory_;
};

std::shared_ptr<Work> done(c10::Device device = c10::kCPU) { return std::make_shared<DoneWork>(device); }

class LocalCommunicator : public Front {
 public:
  explicit LocalCommunicator(Ranks ranks) : Front(std::move(ranks), /*carrier=*/"", c10::kCPU) {}

  std::shared_ptr<Work> all_gather(std::vector<GatherPlane> planes, Tag tag) override {
    const auto span = collective_span(ranks(), checked_all_gather(planes, tag));
    for (const auto& [output, input] : planes)
      if (output.const_data_ptr() != input.const_data_ptr()) output.detach().copy_(input.detach());
    return done(planes.front().output.device());
  }

  std::shared_ptr<Work> reduce_scatter(std::vector<ReducePlane> planes, double scale, Tag tag) override {
    const auto span = collective_span(ranks(), checked_reduce_scatter(planes, tag));
    for (auto& [output, input] : planes) {
      assemble_into(output, std::move(input));
      scale_in_place(output.detach(), scale);
    }
    return done(planes.front().output.device());
  }

  std::shared_ptr<Work> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Tag tag) override {
    const auto span = collective_span(ranks(), checked_all_reduce(tensors, op, tag));
    return done(tensors.front().device());
  }

  std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input, Tag tag) override {
    const auto span = collective_span(ranks(), checked_all_to_all(output, input, tag));
    output.detach().copy_(input.detach());
    return done(output.device());
  }

  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) override {
    const auto span = collective_span(ranks(), checked_broadcast(tensor, root, tag));
    return done(tensor.device());
  }

  std::shared_ptr<Work> barrier(Tag) override { return done(); }

  std::shared_ptr<Communicator> duplicate(const std::string&) override { return make_local_communicator(ranks()); }

  std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart> parts, c10::Device device) override {
    std::vector<std::shared_ptr<SharedBuffer>> buffers;
    for (const auto& part : parts)
      buffers.push_back(std::make_shared<LocalBuffer>(
          at::zeros({static_cast<int64_t>(part.bytes)}, at::TensorOptions().dtype(at::kByte).device(device))));
    return buffers;
  }
  void start_over() override {}

 protected:
  std::shared_ptr<Work> message(const Fingerprint&, const at::Tensor&) override { return done(); }
};

}  // namespace

std::shared_ptr<Communicator> make_local_communicator(Ranks ranks) {
  return std::make_shared<LocalCommunicator>(std::move(ranks));
}

}  // namespace fsdp
