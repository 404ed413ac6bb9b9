#include "gpu/worker/gpu_session.h"

#include <cerrno>
#include <exception>
#include <new>

#include "core/base/error.h"
#include "gpu/driver/device_facts.h"

namespace safetensorfs {
namespace {

// The order in which cuInit, finding the device and its context must come.
const Driver& Initialised(const Driver& driver, const WorkerOptions& options) {
  driver.init(0);
  const DeviceFacts facts = FactsOf(driver, options.ordinal);
  if (facts.uuid != options.uuid) {
    throw Error(ENODEV, "the GPU is " + facts.uuid + " now, it was " + options.uuid +
                            "; mount anew to find the devices again");
  }
  return driver;
}

}  // namespace

GpuSession::GpuSession(const WorkerOptions& options, CallWatch& watch)
    : driver_(watch),
      context_(Initialised(driver_, options), options.ordinal),
      slabs_(driver_),
      staging_(driver_, context_, NumaNodeOf(options.pci_bus)) {}

template <typename Work>
Done GpuSession::Run(std::uint64_t id, const Work& work) {
  Done done;
  done.id = id;
  try {
    work(done);
  } catch (const Error& error) {
    done.error = error.code();
    done.reason = error.what();
    // An error of the device stays with the context, and shows in whatever comes next.
    if (context_.IsDead()) death_ = error.what();
  } catch (const std::bad_alloc&) {
    done.error = ENOMEM;
    done.reason = "the GPU's worker is out of host memory";
  } catch (const std::exception& error) {
    done.error = EIO;
    done.reason = error.what();
  }
  return done;
}

Done GpuSession::Load(const LoadJob& job, std::vector<SourceReader> sources,
                      std::atomic<std::uint64_t>& nbytes_done, std::stop_token stop) {
  return Run(job.id, [&](Done& done) {
    SlabTable::Slabs slabs = slabs_.Allocate(job.slabs);
    // Returns, and throws, when no copy is under way: then slabs may be freed.
    staging_.Fill({job.transfers, sources,
                   [&](std::uint64_t slab) { return slabs.at(slab)->address(); }, &nbytes_done,
                   stop});
    done.handles = ExportSlabs(driver_, slabs, job.slabs, done.no_export);
    slabs_.Add(std::move(slabs));
  });
}

Done GpuSession::Verify(const VerifyJob& job, std::vector<SourceReader> sources,
                        std::atomic<std::uint64_t>& nbytes_done, std::stop_token stop) {
  return Run(job.id, [&](Done& done) {
    // Kept until this is done, whatever is freed meanwhile.
    SlabTable::Slabs slabs;
    for (const Transfer& transfer : job.transfers) {
      if (slabs.contains(transfer.slab)) continue;
      auto slab = slabs_.Find(transfer.slab);
      if (!slab) throw Error(ESTALE, "slab " + std::to_string(transfer.slab) + " is gone");
      slabs.emplace(transfer.slab, std::move(slab));
    }
    const auto address_of = [&](std::uint64_t slab) { return slabs.at(slab)->address(); };
    const auto difference =
        staging_.Compare({job.transfers, sources, address_of, &nbytes_done, stop});
    if (!difference) return;
    done.is_difference = true;
    done.tensor = difference->tensor;
    done.byte = difference->byte;
  });
}

MemoryNow GpuSession::Memory() const {
  std::size_t free = 0;
  std::size_t total = 0;
  driver_.mem_get_info(&free, &total);
  return {free, total};
}

}  // namespace safetensorfs
