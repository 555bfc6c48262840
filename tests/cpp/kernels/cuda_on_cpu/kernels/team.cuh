// Replaces csrc/kernels/team.cuh: runs all threads of a team at the same time on CPU threads, so blocks are small.
#pragma once

#include <cuda_runtime.h>

namespace weft {

constexpr int kTeamThreads = 64;  // threads of a block

struct Team {
  unsigned rank = cuda_on_cpu::block->rank, size = cuda_on_cpu::block->team->size;

  void sync() const { cuda_on_cpu::block->team->all.arrive_and_wait(); }
  template <class T>
  T *of(T *own, unsigned other) const {
    const auto at = reinterpret_cast<std::byte *>(own) - cuda_on_cpu::block->memory.data();
    return reinterpret_cast<T *>(cuda_on_cpu::block->team->blocks[other]->memory.data() + at);
  }
};

template <class T>
T &block_memory() {
  static_assert(sizeof(T) <= 48 * 1024, "as much as a block has");
  return *reinterpret_cast<T *>(cuda_on_cpu::block->memory.data());
}

constexpr unsigned kLargestTeam = 8;
inline unsigned largest_team() { return kLargestTeam; }

template <class... Parameters, class... Arguments>
void launch_teams(void (*kernel)(Parameters...), unsigned teams, unsigned size, void *, const Arguments &...arguments) {
  gridDim = dim3(teams * size);
  for (unsigned t = 0; t < teams; ++t) {
    cuda_on_cpu::Team team(size, kTeamThreads);
    std::vector<std::thread> running;
    for (unsigned n = 0; n < size * kTeamThreads; ++n) {
      running.emplace_back([&, n] {
        cuda_on_cpu::block = team.blocks[n / kTeamThreads].get();
        threadIdx = dim3(n % kTeamThreads);
        blockIdx = dim3(t * size + n / kTeamThreads);
        kernel(arguments...);
      });
    }
    for (std::thread &thread : running) thread.join();
  }
}

}  // namespace weft
