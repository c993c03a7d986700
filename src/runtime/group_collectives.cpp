#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <fsdp/group_collectives.h>

#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/core/current_stream.h"

namespace fsdp {
namespace {

// The function that the user runs after a collective. It is called once.
class Act {
 public:
  Act(c10::Device device, std::function<void()> act) : device_(device), act_(std::move(act)) {
    if (!device_.is_cpu()) acted_.emplace(device_.type());
  }
  /// The first call of `run` calls the function. Every call makes the calling thread's current stream wait for the
  /// function's work on the device.
  void run() {
    std::call_once(once_, [this] {
      try {
        const at::NoGradGuard no_grad;
        act_();
      } catch (...) {
        error_ = std::current_exception();
      }
      if (acted_) acted_->record(current_stream(device_));
    });
    if (error_) std::rethrow_exception(error_);
    if (acted_) acted_->block(current_stream(device_));
  }

 private:
  const c10::Device device_;
  const std::function<void()> act_;
  std::once_flag once_;
  std::exception_ptr error_;
  std::optional<c10::Event> acted_;
};

class FollowedWork : public Work {
 public:
  FollowedWork(std::shared_ptr<Work> work, std::shared_ptr<Act> act) : work_(std::move(work)), act_(std::move(act)) {}
  void wait() override {
    work_->wait();
    act_->run();
  }
  bool lets_others_go_on() const override { return work_->lets_others_go_on(); }
  void then(Next next) override {
    work_->then([act = act_, next = std::move(next)] {
      try {
        act->run();
      } catch (...) {
        return;  // `wait` throws the error
      }
      next();
    });
  }

 private:
  const std::shared_ptr<Work> work_;
  const std::shared_ptr<Act> act_;
};

}  // namespace

std::shared_ptr<Work> followed_by(std::shared_ptr<Work> work, const at::Tensor& result, std::function<void()> act) {
  return std::make_shared<FollowedWork>(std::move(work), std::make_shared<Act>(result.device(), std::move(act)));
}

}  // namespace fsdp
