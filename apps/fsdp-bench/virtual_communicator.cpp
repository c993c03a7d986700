#include "virtual_communicator.h"

#include <utility>

#include "comm/core/front.h"
#include "comm/failure/verdict.h"

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
  struct Options {
    std::shared_ptr<Issued> issued;
    std::shared_ptr<fsdp::IssuedWindows> windows = nullptr;
    bool shares_memory = false;
    std::string queue = "main";
  };

  VirtualCommunicator(fsdp::Ranks ranks, Options options)
      : Front(std::move(ranks), /*carrier=*/"", c10::kCPU), options_(std::move(options)) {}

  std::shared_ptr<Work> all_gather(std::vector<fsdp::GatherPlane> planes, Tag tag) override {
    ++options_.issued->gathers;
    return done(checked_all_gather(planes, tag), 1);
  }
  std::shared_ptr<Work> reduce_scatter(std::vector<fsdp::ReducePlane> planes, double, Tag tag) override {
    ++options_.issued->reductions;
    return done(checked_reduce_scatter(planes, tag), 1);
  }
  std::shared_ptr<Work> all_reduce(std::vector<at::Tensor> tensors, fsdp::ReduceOp op, Tag tag) override {
    ++options_.issued->reductions;
    return done(checked_all_reduce(tensors, op, tag), 2);
  }
  std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input, Tag tag) override {
    ++options_.issued->others;
    return done(checked_all_to_all(output, input, tag), 1);
  }
  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) override {
    ++options_.issued->others;
    return done(checked_broadcast(tensor, root, tag), 1);
  }
  std::shared_ptr<Work> barrier(Tag) override { return std::make_shared<Done>(); }
  std::shared_ptr<fsdp::Communicator> duplicate(const std::string& name) override {
    auto options = options_;
    options.queue += '.' + name;
    return std::make_shared<VirtualCommunicator>(ranks(), std::move(options));
  }
  std::vector<std::shared_ptr<fsdp::SharedBuffer>> share(std::span<const fsdp::SharedPart> parts,
                                                         c10::Device device) override {
    if (!options_.shares_memory) return {};
    return fsdp::make_local_communicator({})->share(parts, device);
  }
  void start_over() override {}

 protected:
  std::shared_ptr<Work> message(const Fingerprint& fingerprint, const at::Tensor&) override {
    ++options_.issued->others;
    return done(fingerprint, 1);
  }

 private:
  // Counts an operation, whose data goes around the ring `times` times.
  std::shared_ptr<Work> done(Fingerprint fingerprint, int64_t times) {
    options_.issued->bytes += times * static_cast<int64_t>(fingerprint.bytes) * (world_size() - 1) / world_size();
    fingerprint.sequence = ++sequence_;
    if (options_.windows) {
      options_.windows->note(options_.queue, fingerprint);
      if (const auto verdict = options_.windows->compare()) raise(*verdict, ranks(), "windows");
    }
    return std::make_shared<Done>();
  }

  const Options options_;
  uint64_t sequence_ = 0;
};

}  // namespace

std::shared_ptr<fsdp::Communicator> make_virtual_communicator(fsdp::Ranks ranks, std::shared_ptr<Issued> issued) {
  return std::make_shared<VirtualCommunicator>(std::move(ranks),
                                               VirtualCommunicator::Options{.issued = std::move(issued)});
}

std::shared_ptr<fsdp::Communicator> make_virtual_device(fsdp::Ranks ranks, std::shared_ptr<Issued> issued,
                                                        std::shared_ptr<fsdp::IssuedWindows> windows) {
  return std::make_shared<VirtualCommunicator>(
      std::move(ranks), VirtualCommunicator::Options{.issued = std::move(issued), .windows = std::move(windows)});
}

std::shared_ptr<fsdp::Communicator> make_virtual_host(fsdp::Ranks ranks) {
  return std::make_shared<VirtualCommunicator>(
      std::move(ranks), VirtualCommunicator::Options{.issued = std::make_shared<Issued>(), .shares_memory = true});
}

}  // namespace bench
