#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <fsdp/group_collectives.h>

#include <mutex>
#include <optional>
#include <utility>

#include "comm/core/current_stream.h"

namespace fsdp {
namespace {

class FollowedWork : public Work {
 public:
  FollowedWork(std::shared_ptr<Work> work, c10::Device device, std::function<void()> act)
      : work_(std::move(work)), device_(device), act_(std::move(act)) {
    if (!device_.is_cpu()) acted_.emplace(device_.type());
  }
  void wait() override {
    work_->wait();
    std::call_once(once_, [this] {
      const at::NoGradGuard no_grad;
      act_();
      if (acted_) acted_->record(current_stream(device_));
    });
    if (acted_) acted_->block(current_stream(device_));
  }
  bool lets_others_go_on() const override { return work_->lets_others_go_on(); }
  std::span<const uint8_t> votes() const override { return work_->votes(); }

 private:
  const std::shared_ptr<Work> work_;
  const c10::Device device_;
  const std::function<void()> act_;
  std::once_flag once_;
  std::optional<c10::Event> acted_;
};

}  // namespace

std::shared_ptr<Work> followed_by(std::shared_ptr<Work> work, const at::Tensor& result, std::function<void()> act) {
  return std::make_shared<FollowedWork>(std::move(work), result.device(), std::move(act));
}

}  // namespace fsdp
