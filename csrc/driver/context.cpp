#include "driver/context.h"

#include <atomic>
#include <map>
#include <mutex>

namespace weft {

using namespace cu;

namespace {

std::atomic<int> device_in_use{0};

// The primary context is retained once and never released, because a thread that destroys an event late in the
// process's life still needs it.
CUresult primary_context(const Driver &d, int ordinal, CUcontext *context) {
  static std::mutex mutex;
  static auto *retained = new std::map<int, CUcontext>;
  std::lock_guard<std::mutex> lock(mutex);
  const auto entry = retained->find(ordinal);
  if (entry != retained->end()) {
    *context = entry->second;
    return CUDA_SUCCESS;
  }
  CUdevice device = 0;
  if (CUresult r = d.cuDeviceGet(&device, ordinal)) return r;
  if (CUresult r = d.cuDevicePrimaryCtxRetain(context, device)) return r;
  retained->emplace(ordinal, *context);
  return CUDA_SUCCESS;
}

}  // namespace

void use_device(int ordinal) { device_in_use.store(ordinal); }

int used_device() { return device_in_use.load(); }

CUresult ensure_context(const Driver &d) {
  if (!d.cuCtxGetCurrent) return CUDA_SUCCESS;
  CUcontext context = nullptr;
  // If even this call fails, as it does in a callback, do nothing: the caller's next call reports the error.
  if (d.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context) return CUDA_SUCCESS;
  if (CUresult r = primary_context(d, used_device(), &context)) return r;
  return d.cuCtxSetCurrent(context);
}

}  // namespace weft
