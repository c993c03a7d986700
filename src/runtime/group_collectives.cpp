#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <fsdp/group_collectives.h>

#include <future>
#include <utility>

#include "comm/core/current_stream.h"

namespace fsdp {
namespace {

class FollowedWork : public Work {
 public:
  FollowedWork(std::shared_ptr<Work> work, std::function<void()> act) : work_(std::move(work)), act_(std::move(act)) {}
  void wait() override {
    work_->wait();
    act_();
  }
  bool lets_others_go_on() const override { return work_->lets_others_go_on(); }
  void then(Next next) override {
    work_->then([act = act_, next = std::move(next)] {
      try {
        act();
      } catch (...) {
        return;  // `wait` throws the error
      }
      next();
    });
  }

 private:
  const std::shared_ptr<Work> work_;
  const std::function<void()> act_;
};

}  // namespace

std::shared_ptr<Work> followed_by(std::shared_ptr<Work> work, const at::Tensor& result, std::function<void()> act) {
  const auto device = result.device();
  const auto acted = device.is_cpu() ? nullptr : std::make_shared<c10::Event>(device.type());
  auto first = std::async(std::launch::deferred, [=, act = std::move(act)] {
    const at::NoGradGuard no_grad;
    act();
    if (acted) acted->record(current_stream(device));
  });
  // The first call calls `act`. Every call makes the calling thread's current stream wait for the work of `act` on the
  // device.
  const auto act_once = [=, first = first.share()] {
    first.get();
    if (acted) acted->block(current_stream(device));
  };
  return std::make_shared<FollowedWork>(std::move(work), act_once);
}

}  // namespace fsdp
