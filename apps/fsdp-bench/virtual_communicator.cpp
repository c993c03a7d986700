#include "virtual_communicator.h"

#include <utility>

#include "comm/core/front.h"
#include "comm/core/local_communicator.h"

namespace bench {
namespace {

using fsdp::Fingerprint, fsdp::Tag, fsdp::Work;

class Done : public Work {
 public:
  void wait() override {}
  bool lets_others_go_on() const override { return true; }
};

class VirtualCommunicator : public fsdp::Front {
 public:
  VirtualCommunicator(fsdp::Ranks ranks, std::shared_ptr<Issued> issued, bool shares_memory)
      : Front(std::move(ranks), /*carrier=*/"", c10::kCPU), issued_(std::move(issued)), shares_memory_(shares_memory) {}

  std::shared_ptr<Work> all_gather(std::vector<fsdp::GatherPlane> planes, Tag tag) override {
    ++issued_->gathers;
    return done(checked_all_gather(planes, tag), 1);
  }
  std::shared_ptr<Work> reduce_scatter(std::vector<fsdp::ReducePlane> planes, double, Tag tag) override {
    ++issued_->reductions;
    return done(checked_reduce_scatter(planes, tag), 1);
  }
  std::shared_ptr<Work> all_reduce(std::vector<at::Tensor> tensors, fsdp::ReduceOp op, Tag tag) override {
    ++issued_->reductions;
    return done(checked_all_reduce(tensors, op, tag), 2);
  }
  std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input, Tag tag) override {
    ++issued_->others;
    return done(checked_all_to_all(output, input, tag), 1);
  }
  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) override {
    ++issued_->others;
    return done(checked_broadcast(tensor, root, tag), 1);
  }
  std::shared_ptr<Work> barrier(Tag) override { return std::make_shared<Done>(); }
  std::shared_ptr<fsdp::Communicator> duplicate(const std::string&) override {
    return make_virtual_communicator(ranks(), issued_, shares_memory_);
  }
  std::vector<std::shared_ptr<fsdp::SharedBuffer>> share(std::span<const fsdp::SharedPart> parts,
                                                         c10::Device device) override {
    if (!shares_memory_) return {};
    return fsdp::make_local_communicator({})->share(parts, device);
  }
  void reserve(size_t) override {}
  void start_over() override {}

 protected:
  std::shared_ptr<Work> message(const Fingerprint& fingerprint, const at::Tensor&) override {
    ++issued_->others;
    return done(fingerprint, 1);
  }

 private:
  // `times`: how often the data goes around.
  std::shared_ptr<Work> done(const Fingerprint& fingerprint, int64_t times) const {
    issued_->bytes += times * static_cast<int64_t>(fingerprint.bytes) * (world_size() - 1) / world_size();
    return std::make_shared<Done>();
  }

  const std::shared_ptr<Issued> issued_;
  const bool shares_memory_;
};

}  // namespace

std::shared_ptr<fsdp::Communicator> make_virtual_communicator(fsdp::Ranks ranks, std::shared_ptr<Issued> issued,
                                                              bool shares_memory) {
  return std::make_shared<VirtualCommunicator>(std::move(ranks), std::move(issued), shares_memory);
}

}  // namespace bench
