// Trainer::run starts the ranks that train.

#include <fsdp/process_group.h>
#include <fsdp/spawn.h>
#include <fsdp/trainer.h>

#include "comm/rendezvous/environment.h"

namespace fsdp {
namespace {

// Initializes the default process group. The destructor leaves the group even if an exception is thrown.
class Membership {
 public:
  explicit Membership(const std::string& backend) { init_process_group({.backend = backend}); }
  ~Membership() { destroy_process_group(); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;
};

}  // namespace

void Trainer::run(const TrainerOptions& options, const std::function<void(Trainer& trainer)>& body) {
  const auto train_as_rank = [&](int) {
    const Membership membership(options.backend);
    Trainer trainer(options);
    body(trainer);
  };
  if (options.devices <= 1 || rendezvous_from_environment()) return train_as_rank(0);
  spawn(train_as_rank, options.devices, {.passes_signals_on = true});
}

}  // namespace fsdp
