#include "interfaces.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

#include "comm/posix/descriptor.h"

namespace fsdprun {
namespace {

std::string address_of(const sockaddr* address) {
  std::array<char, NI_MAXHOST> name{};
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return "";
  const socklen_t length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return getnameinfo(address, length, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) == 0 ? name.data() : "";
}

std::string mtu_of(const std::string& interface) {
  std::string mtu;
  std::ifstream("/sys/class/net/" + interface + "/mtu") >> mtu;
  return mtu.empty() ? "none" : mtu;
}

/// Returns a text such as "tso on, gso on, gro off". `ethtool -k` prints the same settings under their long names.
std::string offloads_of(std::string_view interface) {
  const fsdp::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  std::string text;
  for (const auto& [name, command] :
       {std::pair{"tso", ETHTOOL_GTSO}, std::pair{"gso", ETHTOOL_GGSO}, std::pair{"gro", ETHTOOL_GGRO}}) {
    ethtool_value value{.cmd = static_cast<uint32_t>(command), .data = 0};
    ifreq request{};
    interface.copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(&value);
    const bool is_known = ioctl(socket.number(), SIOCETHTOOL, &request) == 0;
    text += (text.empty() ? "" : ", ") + std::string(name) + (is_known ? value.data != 0 ? " on" : " off" : " unknown");
  }
  return text;
}

}  // namespace

Interfaces find_interfaces(const std::string& own_address) {
  Interfaces found{.list = "", .mtu = "none", .offloads = "none"};
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const std::string address = address_of(entry->ifa_addr);
    if (address.empty() || (entry->ifa_flags & IFF_UP) == 0) continue;
    const std::string mtu = mtu_of(entry->ifa_name);
    found.list += (found.list.empty() ? "" : ", ") + (entry->ifa_name + (" " + address)) + " mtu " + mtu;
    if (address != own_address) continue;
    found.mtu = mtu;
    found.offloads = offloads_of(entry->ifa_name);
  }
  return found;
}

}  // namespace fsdprun
