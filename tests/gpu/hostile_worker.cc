#include "tests/gpu/hostile_worker.h"

#include <unistd.h>

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"
#include "gpu/process/channel.h"
#include "gpu/process/gpu_process.h"
#include "gpu/process/message.h"

namespace safetensorfs {
namespace {

constexpr std::uint32_t kMuch = std::numeric_limits<std::uint32_t>::max();

template <typename Message>
void Send(Channel& channel, MessageKind kind, const Message& message, std::string_view tail = {}) {
  channel.Send(static_cast<std::uint32_t>(kind), Encode(message), tail);
}

// What no frame is: a header as in channel.cc (kind, descriptors, size), and less than it says.
void SendRaw(std::uint64_t size, std::string_view bytes) {
  const std::uint64_t words[] = {static_cast<std::uint64_t>(MessageKind::kHello), size};
  std::string text(reinterpret_cast<const char*>(words), sizeof words);
  text += bytes;
  [[maybe_unused]] const ssize_t n = write(GpuProcess::kSocket, text.data(), text.size());
}

std::string Poison() { return "\n\x1b[31m\xff " + std::string(100'000, 'x'); }

Hello Greeting() {
  Hello hello;
  hello.pid = getpid();
  return hello;
}

// Answers a job as a worker does that has no GPU.
Done Obey(const LoadJob& job) {
  Done done;
  done.id = job.id;
  done.handles.resize(job.slabs.size());
  return done;
}

void AnswerLoad(Channel& channel, const std::string& how, const LoadJob& job) {
  Done done = Obey(job);
  if (how == "strange ids") {
    for (const MessageKind kind : {MessageKind::kBytes, MessageKind::kProgress}) {
      Send(channel, kind, JobProgress{job.id + 1000, ~std::uint64_t{0}});
    }
    channel.Send(0, "");
    channel.Send(kMuch, "what?");
    Send(channel, MessageKind::kLoad, job);
    done.id += 1000;
    Send(channel, MessageKind::kDone, done);
    done.id = job.id;
  }
  if (how == "progress") {
    Send(channel, MessageKind::kProgress, JobProgress{job.id, ~0ull});
    return;  // until it is cancelled
  }
  if (how == "failure") {
    done.error = std::numeric_limits<std::int32_t>::min();
    done.reason = Poison();
  }
  if (how == "handles") done.handles.resize(done.handles.size() + 1);
  if (how == "no handles") {
    done.handles.clear();
    done.no_export = Poison();
  }
  Send(channel, MessageKind::kDone, done);
  // Once more: nobody waits for it.
  Send(channel, MessageKind::kDone, done);
}

void AnswerVerify(Channel& channel, const VerifyJob& job) {
  Done done;
  done.id = job.id;
  done.is_difference = 77;
  done.tensor = kMuch;
  Send(channel, MessageKind::kDone, done);
}

// Does every load, but says so of the second when the third is asked for; ends when it is to free
// what the second has loaded.
int ServeLate(Channel& channel) {
  std::vector<LoadJob> loads;
  while (const std::optional<Frame> frame = channel.Receive()) {
    switch (static_cast<MessageKind>(frame->kind)) {
      case MessageKind::kLoad:
        loads.push_back(Decode<LoadJob>(frame->body));
        if (loads.size() == 3) Send(channel, MessageKind::kDone, Obey(loads[1]));
        if (loads.size() != 2) Send(channel, MessageKind::kDone, Obey(loads.back()));
        break;
      case MessageKind::kFree:
        if (Decode<FreeJob>(frame->body).slabs.at(0) == loads.at(1).slabs[0].number) return 7;
        break;
      default:
        break;
    }
  }
  return 0;
}

void Serve(Channel& channel, const std::string& how) {
  while (const std::optional<Frame> frame = channel.Receive()) {
    switch (static_cast<MessageKind>(frame->kind)) {
      case MessageKind::kLoad:
        AnswerLoad(channel, how, Decode<LoadJob>(frame->body));
        break;
      case MessageKind::kVerify:
        AnswerVerify(channel, Decode<VerifyJob>(frame->body));
        break;
      case MessageKind::kRead: {
        const auto read = Decode<ReadBack>(frame->body);
        const std::int32_t error = how == "read errors" ? -5 : 0;
        Send(channel, MessageKind::kBytes, Bytes{read.id, error},
             std::string(read.nbytes + 5000, 'y'));
        break;
      }
      case MessageKind::kFree: {
        Done done;
        done.id = Decode<FreeJob>(frame->body).id;
        Send(channel, MessageKind::kDone, done);
        break;
      }
      default:
        break;
    }
  }
}

}  // namespace

int RunHostileWorker(const std::string& how) {
  Channel channel(UniqueFd(GpuProcess::kSocket), {});
  if (how == "noise") {
    SendRaw(0x5151515151515151, std::string(4000, 'Q'));
    channel.Receive();  // stays
  } else if (how == "a huge frame") {
    SendRaw(std::uint64_t{1} << 35, "x");
    while (channel.Receive()) {
    }
  } else if (how == "half a frame") {
    SendRaw(1000, "x");
  } else if (how == "half a message") {
    channel.Send(static_cast<std::uint32_t>(MessageKind::kHello), "abc");
  } else if (how == "a huge count") {
    std::string text = Encode(Done());
    text.replace(12, 8, 8, '\x7f');  // the size of the reason, after id and errno
    channel.Send(static_cast<std::uint32_t>(MessageKind::kDone), text);
  } else if (how == "no greeting") {
    Hello hello = Greeting();
    hello.error = 1 << 30;
    hello.reason = Poison();
    Send(channel, MessageKind::kHello, hello);
    Serve(channel, how);
  } else if (how == "last words") {
    Send(channel, MessageKind::kLost, Lost{Poison()});
    return 3;
  } else if (how == "an end") {
    Send(channel, MessageKind::kHello, Greeting());
    channel.Receive();
    return 3;
  } else if (how == "late") {
    Send(channel, MessageKind::kHello, Greeting());
    return ServeLate(channel);
  } else {
    Send(channel, MessageKind::kHello, Greeting());
    Send(channel, MessageKind::kMemory, MemoryNow{~0ull, 0});
    Serve(channel, how);
  }
  return 0;
}

}  // namespace safetensorfs
