// Stream memory operations: words that streams write, and words that streams wait for.
//
// In the schedule kThreads the lane's thread itself waits. In the other schedules a node that has to wait is set aside,
// and its word is checked whenever a thread looks for the next node.
#include <chrono>
#include <thread>

#include "driver/cpu/calls.h"

namespace weft::cpu {

using namespace cu;

namespace {

constexpr std::chrono::microseconds kLook{100};  // between two checks, unless `values_changed` is called

bool is_satisfied(const Work &work) {
  const auto word = __atomic_load_n(static_cast<const cuuint32_t *>(work.dst), __ATOMIC_ACQUIRE);
  switch (work.value_flags) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return word == work.value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (word & work.value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return ~(word | work.value) != 0;
    default:
      return static_cast<std::int32_t>(word - work.value) >= 0;
  }
}

CUresult submit_value(State &s, Lock &lock, CUstream stream, Work::Value op, CUdeviceptr address, cuuint32_t value,
                      unsigned flags) {
  if (!address || address % sizeof(cuuint32_t) != 0) return CUDA_ERROR_INVALID_VALUE;
  Work work;
  work.kind = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  work.dst = reinterpret_cast<void *>(address);
  work.value_op = op;
  work.value = value;
  work.value_flags = flags;
  return submit(s, lock, stream, work);
}

}  // namespace

void apply_value(const Work &work, bool blocks) {
  if (work.value_op == Work::kWrite)
    return __atomic_store_n(static_cast<cuuint32_t *>(work.dst), work.value, __ATOMIC_RELEASE);
  for (int looks = 0; blocks && !is_satisfied(work); ++looks) {
    if (looks < 100)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kLook / 4);
  }
}

bool hold_for_value(State &s, Runnable *node) {
  if (node->work.value_op != Work::kWait || is_satisfied(node->work)) return false;
  s.value_waits.push(node);
  if (s.waiters > 0) s.progress.notify_all();  // they check from now on
  return true;
}

void release_values(State &s) {
  std::size_t index = 0;
  for (Runnable *node = s.value_waits.head; node;) {
    Runnable *next = node->next;
    if (is_satisfied(node->work))
      s.ready[kCopy].push(s.value_waits.take(index));
    else
      ++index;
    node = next;
  }
}

void await_progress(State &s, Lock &lock) { s.progress.wait_for(lock, kLook); }

void values_changed() {
  State &s = state();
  Lock lock(s.mutex);
  if (s.value_waits.head && s.waiters > 0) s.progress.notify_all();
}

CUresult stream_write_value(State &s, Lock &lock, CUstream stream, CUdeviceptr address, cuuint32_t value,
                            unsigned flags) {
  if (flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  return submit_value(s, lock, stream, Work::kWrite, address, value, flags);
}

CUresult stream_wait_value(State &s, Lock &lock, CUstream stream, CUdeviceptr address, cuuint32_t value,
                           unsigned flags) {
  if (flags > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_NOT_SUPPORTED;  // such as flushing remote writes
  return submit_value(s, lock, stream, Work::kWait, address, value, flags);
}

}  // namespace weft::cpu
