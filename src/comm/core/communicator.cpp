#include <fsdp/communicator.h>
#include <fsdp/error.h>
#include <fsdp/traffic.h>

#include <ostream>

namespace fsdp {
namespace {

class SendAndRecv : public Work {
 public:
  SendAndRecv(std::shared_ptr<Work> send, std::shared_ptr<Work> recv)
      : send_(std::move(send)), recv_(std::move(recv)) {}
  void wait() override {
    recv_->wait();
    send_->wait();
  }
  void then(Next next) override {
    recv_->then([send = send_, next = std::move(next)] { send->then(next); });
  }

 private:
  const std::shared_ptr<Work> send_, recv_;
};

}  // namespace

Error::Error(const std::string& message) : c10::Error(message, /*backtrace=*/nullptr) {}

PeerLost::PeerLost(int rank, const std::string& message) : Error(message), rank_(rank) {}

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

std::shared_ptr<Work> Communicator::send_recv(const at::Tensor& outgoing, int to, const at::Tensor& incoming, int from,
                                              const Tag& tag) {
  auto sent = send(outgoing, to, tag);
  return std::make_shared<SendAndRecv>(std::move(sent), recv(incoming, from, tag));
}

}  // namespace fsdp
