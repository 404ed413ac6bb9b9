#include "gpu/process/channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <thread>

#include "core/base/error.h"
#include "gpu/process/message.h"
#include "tests/catch.h"

namespace safetensorfs {
namespace {

std::pair<UniqueFd, UniqueFd> SocketPair() {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

ino_t InodeOf(int fd) {
  struct stat status = {};
  REQUIRE(fstat(fd, &status) == 0);
  return status.st_ino;
}

}  // namespace

TEST_CASE("Frames arrive whole and in order, with their descriptors") {
  auto [ours, theirs] = SocketPair();
  Channel sender(std::move(ours), {});
  Channel receiver(std::move(theirs), {});
  const std::string large(5'000'000, 'x');
  const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<int> fds(Channel::kMaxFds, file.get());
  std::jthread thread([&] {
    sender.Send(1, "head", "tail");
    sender.Send(2, large, {}, fds);
    sender.Send(3, "");
    sender.ShutDown();
  });
  auto frame = receiver.Receive();
  REQUIRE(frame);
  CHECK(frame->kind == 1);
  CHECK(frame->body == "headtail");
  CHECK(frame->fds.empty());
  frame = receiver.Receive();
  REQUIRE(frame);
  CHECK(frame->body == large);
  REQUIRE(frame->fds.size() == fds.size());
  for (const UniqueFd& fd : frame->fds) {
    CHECK(InodeOf(fd.get()) == InodeOf(file.get()));
    CHECK((fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  }
  CHECK(receiver.Receive()->kind == 3);
  CHECK_FALSE(receiver.Receive());
}

TEST_CASE("A frame that is larger than agreed is not received") {
  auto [ours, theirs] = SocketPair();
  Channel sender(std::move(ours), {});
  Channel receiver(std::move(theirs), {100});
  sender.Send(1, std::string(100, 'x'));
  sender.Send(1, std::string(101, 'x'));
  CHECK(receiver.Receive());
  CHECK_THROWS_AS(receiver.Receive(), Error);
}

TEST_CASE("Sending to who takes nothing ends") {
  auto [ours, theirs] = SocketPair();
  Channel sender(std::move(ours), {100, std::chrono::seconds(1)});
  try {
    sender.Send(1, std::string(5'000'000, 'x'));
    FAIL("sent");
  } catch (const Error& error) {
    CHECK(error.code() == ETIMEDOUT);
  }
}

TEST_CASE("Sending to nobody is an error, not a signal") {
  auto [ours, theirs] = SocketPair();
  Channel sender(std::move(ours), {});
  theirs = UniqueFd();
  CHECK_THROWS_AS(sender.Send(1, "x"), Error);
}

TEST_CASE("Messages come back as they were") {
  LoadJob job;
  job.id = 5;
  job.is_one_of_several = true;
  job.slabs = {{1, 2 << 20}, {2, 4 << 20}};
  job.transfers = {{1, 256, 1000, 77, 3, 9}};
  const auto copy = Decode<LoadJob>(Encode(job));
  CHECK(copy.id == 5);
  CHECK(copy.is_one_of_several);
  REQUIRE(copy.slabs.size() == 2);
  CHECK(copy.slabs[1].nbytes == 4 << 20);
  REQUIRE(copy.transfers.size() == 1);
  CHECK(copy.transfers[0].tensor == 9);

  Done done;
  done.reason = std::string("a\0b", 3);
  done.handles.resize(2);
  done.handles[1][63] = 7;
  done.is_difference = true;
  done.byte = 1ull << 40;
  const auto same = Decode<Done>(Encode(done));
  CHECK(same.reason == done.reason);
  CHECK(same.handles == done.handles);
  CHECK(same.byte == done.byte);

  std::string_view rest;
  const std::string bytes = Encode(Bytes{3, EIO}) + "rest";
  CHECK(Decode<Bytes>(bytes, &rest).error == EIO);
  CHECK(rest == "rest");
}

TEST_CASE("A message that is cut is refused") {
  Done done;
  done.reason = "why";
  done.handles.resize(1);
  const std::string bytes = Encode(done);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CHECK_THROWS_AS(Decode<Done>(std::string_view(bytes).substr(0, size)), Error);
  }
}

}  // namespace safetensorfs
