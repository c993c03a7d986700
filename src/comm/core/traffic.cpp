#include <fsdp/traffic.h>

#include <ostream>

namespace fsdp {

std::ostream& operator<<(std::ostream& out, const Traffic& traffic) {
  const auto print = [&](const char* name, const Traffic::Link& link) {
    out << name << ' ' << static_cast<double>(link.sent) / 1e6 << " MB sent, "
        << static_cast<double>(link.received) / 1e6 << " MB received";
  };
  print("between hosts", traffic.between_hosts);
  out << "; ";
  print("inside the host", traffic.inside_host);
  return out;
}

}  // namespace fsdp
