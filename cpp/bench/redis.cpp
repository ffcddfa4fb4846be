// SPDX-License-Identifier: Apache-2.0
// redis: the reference over a unix socket, spoken without a library in between. Its GET pins
// nothing, and its values are 4 bytes: both in its favour.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "bench.hpp"

namespace bench {
namespace {

class Client {
 public:
  explicit Client(const std::string& path) : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::snprintf(to.sun_path, sizeof to.sun_path, "%s", path.c_str());
    const timeval limit{30, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0)
      die("redis at %s: %s", path.c_str(), std::strerror(errno));
  }
  // Sends all of it and reads `answers` bytes.
  const char* ask(const std::string& request, std::size_t answers) {
    for (std::size_t sent = 0; sent < request.size();) {
      const ssize_t n = send(fd_, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) die("redis: send: %s", std::strerror(errno));
      sent += std::size_t(n);
    }
    buffer_.resize(answers);
    for (std::size_t got = 0; got < answers;) {
      const ssize_t n = recv(fd_, buffer_.data() + got, answers - got, 0);
      if (n <= 0) die("redis: recv: %s", n ? std::strerror(errno) : "it closed the connection");
      got += std::size_t(n);
      if (buffer_[0] == '-') die("redis: %.*s", int(got), buffer_.data());
    }
    return buffer_.data();
  }

 private:
  int fd_;
  std::vector<char> buffer_;
};

constexpr std::size_t kHit = 10;  // $4\r\n....\r\n

void add_get(std::string* request, std::uint64_t key) {
  Key k;
  make_key(1, key, k.bytes);
  *request += "*2\r\n$3\r\nGET\r\n$16\r\n";
  request->append(reinterpret_cast<const char*>(k.bytes), 16);
  *request += "\r\n";
}

void load(Client& client, std::uint64_t n) {
  constexpr std::uint64_t kBatch = 1000;
  for (std::uint64_t i = 0; i < n; i += kBatch) {
    const std::uint64_t count = n - i < kBatch ? n - i : kBatch;
    std::string request = "*";
    request += std::to_string(1 + 2 * count);
    request += "\r\n$4\r\nMSET\r\n";
    for (std::uint64_t j = i; j < i + count; j++) {
      Key k;
      make_key(1, j, k.bytes);
      request += "$16\r\n";
      request.append(reinterpret_cast<const char*>(k.bytes), 16);
      request += "\r\n$4\r\n";
      request.append(reinterpret_cast<const char*>(&j), 4);
      request += "\r\n";
    }
    client.ask(request, 5);  // +OK\r\n
  }
}

}  // namespace

int redis(const Args& args) {
  Client client(args.text("socket"));
  const std::uint64_t n = args.number("blocks");
  if (args.number("load")) load(client, n);
  const std::vector<std::uint32_t> order = shuffled(n, args.number("order", 7));
  std::uint64_t at = 0;
  auto next = [&] {
    const std::uint64_t key = order[at];
    if (++at == n) at = 0;
    return key;
  };
  Line facts;
  return serve(facts, [&](const Order& what, Line& out) {
    // the word: how many GETs go out together
    const std::size_t together = std::strtoul(what.word.c_str(), nullptr, 10);
    if (!together) die("redis: %s at a time?", what.word.c_str());
    std::vector<double> cost;
    std::uint64_t gets = 0;
    const std::uint64_t begin = now_ns(), end = begin + what.number * 1000000;
    for (std::uint64_t last = begin; last < end;) {
      std::string request;
      for (std::size_t i = 0; i < together; i++) add_get(&request, next());
      const std::uint64_t start = now_ns();
      const char* answer = client.ask(request, kHit * together);
      last = now_ns();
      for (std::size_t i = 0; i < together; i++)
        if (std::memcmp(answer + kHit * i, "$4\r\n", 4) != 0) die("redis: a miss");
      cost.push_back(double(last - start) / double(together));
      gets += together;
    }
    out.add("ns", median(cost)).add("per_second", double(gets) * 1e9 / double(now_ns() - begin));
  });
}

}  // namespace bench
