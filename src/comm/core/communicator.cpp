#include <fsdp/communicator.h>

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

std::shared_ptr<Work> Communicator::send_recv(const at::Tensor& outgoing, int to, const at::Tensor& incoming, int from,
                                              const Tag& tag) {
  auto sent = send(outgoing, to, tag);
  return std::make_shared<SendAndRecv>(std::move(sent), recv(incoming, from, tag));
}

}  // namespace fsdp
