#include <fsdp/error.h>

namespace fsdp {

Error::Error(const std::string& message) : c10::Error(message, /*backtrace=*/nullptr) {}

PeerLost::PeerLost(int rank, const std::string& message) : Error(message), rank_(rank) {}

}  // namespace fsdp
