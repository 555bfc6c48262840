// A team of blocks that share a row: a thread block cluster if the device supports clusters, else one block. It is a
// separate file, included with <>, so that tests can replace it by CPU threads.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <kernels/launch.cuh>

namespace weft {

constexpr int kTeamThreads = 512;  // threads of a block

// A team as seen by a thread of one of its blocks.
struct Team {
  unsigned rank = 0, size = 1;  // rank of this block; number of blocks, a power of two

  __device__ Team() {
#if __CUDA_ARCH__ >= 900
    const auto cluster = cooperative_groups::this_cluster();
    rank = cluster.block_rank(), size = cluster.num_blocks();
#endif
  }
  // Waits for all threads of the team; their writes are then visible.
  __device__ void sync() const {
#if __CUDA_ARCH__ >= 900
    if (size > 1) return cooperative_groups::this_cluster().sync();
#endif
    __syncthreads();
  }
  // Maps the address `local` in this block's shared memory to the same variable in block `other`.
  template <class T>
  __device__ T *of(T *local, unsigned other) const {
#if __CUDA_ARCH__ >= 900
    if (size > 1) return cooperative_groups::this_cluster().map_shared_rank(local, other);
#endif
    return local;
  }
};

// A T in the block's shared memory.
template <class T>
__device__ T &block_memory() {
  __shared__ alignas(T) unsigned char bytes[sizeof(T)];
  return *reinterpret_cast<T *>(bytes);
}

constexpr unsigned kLargestTeam = 8;  // the portable cluster size

inline unsigned largest_team() {
  int device = 0, has_clusters = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch, device);
  return has_clusters ? kLargestTeam : 1;
}

// Launches `kernel` with `teams` teams of `size` blocks on `stream` of the current device.
template <class... Parameters, class... Arguments>
void launch_teams(void (*kernel)(Parameters...), unsigned teams, unsigned size, void *stream,
                  const Arguments &...arguments) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = add_chaining(attributes);
  if (size > 1) {
    cudaLaunchAttribute &cluster = attributes[count++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = size, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(teams * size), config.blockDim = dim3(kTeamThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes, config.numAttrs = count;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace weft
