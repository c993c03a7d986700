#include "support/faulty_communicator.h"

#include <fsdp/error.h>

#include <atomic>
#include <thread>

#include "comm/core/ranks.h"
#include "support/decorator.h"

namespace fsdp {
namespace {

struct Plan {
  Fault fault;
  std::atomic<int> calls{0};
};

class FaultyCommunicator : public Decorator {
 public:
  FaultyCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<Plan> plan, std::string lane)
      : Decorator(std::move(inner), std::move(lane)), plan_(std::move(plan)) {}

 private:
  void before(Operation operation, uint64_t, Tag& tag) override {
    const Fault& fault = plan_->fault;
    if (!fault.lane.empty() && fault.lane != lane()) return;
    if (plan_->calls++ != fault.at) return;
    switch (fault.kind) {
      case Fault::Kind::kThrow:
        throw Error(
            c10::str(Ranks{rank(), world_size()}.where(name_of(operation)), "injected fault in '", tag.subject, "'"));
      case Fault::Kind::kDelay:
        return std::this_thread::sleep_for(fault.delay);
      case Fault::Kind::kOtherSubject:
        tag.subject += " (injected fault)";
    }
  }
  std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> duplicate, const std::string& name) override {
    return std::make_shared<FaultyCommunicator>(std::move(duplicate), plan_, name);
  }

  const std::shared_ptr<Plan> plan_;
};

}  // namespace

std::shared_ptr<Communicator> make_faulty_communicator(std::shared_ptr<Communicator> inner, Fault fault) {
  auto plan = std::make_shared<Plan>();
  plan->fault = std::move(fault);
  return std::make_shared<FaultyCommunicator>(std::move(inner), std::move(plan), "main");
}

}  // namespace fsdp
