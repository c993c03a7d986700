#include "comm/c10d/inside.h"

#include <fsdp/error.h>

#include "comm/core/check.h"

#include <stdexcept>

namespace fsdp {

void Inside::run(const std::function<void(Communicator&)>& act) const {
  try {
    wire_->wait_elsewhere([&] { act(*host_); },
                          [host = host_] { host->fail("a collective of several hosts", "it was interrupted."); });
  } catch (const PeerLost& lost) {
    wire_->blame(ranks_.number_of(lost.rank()));
    throw std::runtime_error(first_line(lost.what()));
  } catch (const Error& error) {
    throw std::runtime_error(first_line(error.what()));
  }
}

}  // namespace fsdp
